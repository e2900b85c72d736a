"""RunSpec -> the inputs of evaluations, for all stages with one."""

from __future__ import annotations

from xp.diagnosis.history import Facts
from xp.diagnosis.live import LiveRules
from xp.planning.backend import RunPaths
from xp.spec import RunSpec
from xp.tasks.evaluated import Rounds
from xp.worker.best import BestRule


def rounds(spec: RunSpec) -> Rounds:
    """Rounds of one evaluation, for the stages' programs."""
    return Rounds(spec.evaluation.num_tasks, spec.evaluation.samples_per_task)


def best_rule(spec: RunSpec, places: RunPaths) -> BestRule | None:
    """Rule for the evaluations during training; None: there is none."""
    evaluation = spec.evaluation
    if not evaluation.keep_best and evaluation.patience is None:
        return None
    return BestRule(places.checkpoints, places.metrics, evaluation.keep_best, evaluation.patience)


def live_rules(spec: RunSpec) -> LiveRules:
    """Rules that a training applies to its own metrics."""
    return LiveRules(spec.training.on_symptom.value, Facts.of_spec(spec.model_dump(mode="json")))
