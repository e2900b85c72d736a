"""RunSpec -> what the rules of xp.diagnosis need of it, while a training goes on and after it."""

from __future__ import annotations

from xp.diagnosis.history import Facts
from xp.diagnosis.live import LiveRules
from xp.spec import RunSpec


def live_rules(spec: RunSpec) -> LiveRules:
    """What a training looks for in its own metrics."""
    return LiveRules(spec.training.on_symptom.value, facts_of(spec))


def facts_of(spec: RunSpec) -> Facts:
    """What the rules need of a spec."""
    training = spec.training
    return Facts(
        warmup_updates=training.warmup_updates,
        updates_per_step=training.updates_per_step * training.passes_per_step,
        max_grad_norm=training.max_grad_norm,
        members=tuple(spec.env.members),
    )
