"""The gradient's norm rises far above its usual value, and above the limit at which it is clipped.

Source: clipping by norm bounds one update (Pascanu et al. 2013, arXiv:1211.5063); repeated spikes point to the data
or the learning rate.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from xp.diagnosis.history import History
from xp.diagnosis.symptom import Severity, Symptom

TIMES: Final = 10.0
BEFORE: Final = 5
"""Number of earlier steps that give the usual value."""


def find(history: History) -> Symptom | None:
    points = history.series("training/grad_norm")
    spikes = []
    for at in range(BEFORE, len(points)):
        step, norm = points[at]
        usual = median(value for _, value in points[:at])
        if usual > 0 and norm > TIMES * usual and norm > history.facts.max_grad_norm:
            spikes.append((step, norm, usual))
    if not spikes:
        return None
    step, norm, usual = max(spikes, key=lambda one: one[1])
    return Symptom(
        "gradient",
        Severity.ALARM,
        step,
        f"the gradient's norm was {norm:.3g}, {norm / usual:.0f} times as large as before, in {len(spikes)} steps",
        "One step's rewards or lengths were unlike the others, or the learning rate is too high.",
        "Look at that step's episodes; lower training.learning_rate or training.max_grad_norm.",
    )
