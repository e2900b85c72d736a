"""Void episodes, and the environment that they come from.

Source: xp.episode; an episode with a failure of its environment has no reward and is excluded from means.
"""

from __future__ import annotations

from typing import Final

from xp.diagnosis.history import History, latest
from xp.diagnosis.symptom import Severity, Symptom

MANY: Final = 0.05
STEPS: Final = 4
TIMES: Final = 3.0


def find(history: History) -> Symptom | None:
    points = history.series("episodes/void")
    share = latest(points, STEPS)
    own = {
        member: found
        for member in history.facts.members
        if (found := latest(history.series(f"{member}/episodes/void"), STEPS)) is not None
    }
    worst = max(own, key=lambda name: own[name], default=None)
    is_one = worst is not None and len(own) > 1 and own[worst] >= MANY and own[worst] >= TIMES * _others(own, worst)
    if share is None or (share < MANY and not is_one):
        return None
    where = f", in {worst} {own[worst]:.0%}, elsewhere {_others(own, worst):.0%}" if is_one and worst else ""
    return Symptom(
        "void",
        Severity.ALARM,
        points[-1][0],
        f"{share:.0%} of the episodes are void{where}",
        "The environment fails or is too slow; void_reason in the trajectories says how.",
        "Look at python -m xp env check, env.limits, and the server's own log.",
    )


def _others(own: dict[str, float], worst: str) -> float:
    return max((value for name, value in own.items() if name != worst), default=0.0)
