"""RunSpec -> rules of xp.diagnosis for the train stage."""

from __future__ import annotations

from xp.diagnosis.history import Facts
from xp.diagnosis.live import LiveRules
from xp.spec import RunSpec


def live_rules(spec: RunSpec) -> LiveRules:
    """Rules that a training applies to its own metrics."""
    return LiveRules(spec.training.on_symptom.value, Facts.of_spec(spec.model_dump(mode="json")))
