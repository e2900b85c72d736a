"""The reward rises but the share of passed tasks does not: the reward does not measure the task.

Source: reward hacking (Amodei et al. 2016, arXiv:1606.06565, section 4; Skalse et al. 2022, arXiv:2209.13085).
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, change
from xp.diagnosis.symptom import Severity, Symptom

HACKED: Final = "hacked"
RISE: Final = 0.15
FLAT: Final = 0.1
"""Rise of the share of passed tasks, relative to the distance to 1, that still counts as no rise."""
PASSED: Final = 0.9
"""Share of passed tasks above which it can hardly rise, so that the rule does not apply."""


def find(history: History) -> Symptom | None:
    reward, passes = change(history.series("reward/avg_raw_reward")), change(history.passes())
    if reward is None or passes is None or reward.by < RISE or passes.before >= PASSED:
        return None
    if passes.by > FLAT * (1 - passes.before):
        return None
    return Symptom(
        HACKED,
        Severity.ALARM,
        reward.step,
        f"the mean reward rose from {reward.before:.3f} to {reward.after:.3f}, the share of passed tasks from"
        f" {passes.before:.3f} to {passes.after:.3f}",
        "Something is rewarded that is not the task: step rewards, or a part of env.reward_fn.",
        "Read the best episodes; change env.reward or env.reward_fn; is evaluation.pass_threshold what a pass is?",
    )
