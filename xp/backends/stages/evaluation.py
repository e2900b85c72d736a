"""RunSpec -> what an evaluation plays, for every stage that plays one."""

from __future__ import annotations

from xp.spec import RunSpec
from xp.tasks.rounds import Rounds


def rounds(spec: RunSpec) -> Rounds:
    """Of one evaluation, as the stages' programs read it."""
    return Rounds(spec.evaluation.num_tasks, spec.evaluation.samples_per_task)
