"""Random legal specs, and what a spec means in words that belong to no trainer: each trainer's test reads them back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from xp.composition import compose
from xp.planning.backend import spec_refusals
from xp.spec import RunSpec


@dataclass(frozen=True)
class Meant:
    """The experiment, as far as a trainer's own configuration says it."""

    prompts_per_step: int
    group_size: int
    episodes_per_update: int
    updates_per_step: float
    """All passes together."""
    num_steps: int
    learning_rate: float
    lr_schedule: str
    warmup_updates: int
    weight_decay: float
    adam: tuple[float, float]
    max_grad_norm: float
    kl_coef: float
    entropy_coef: float
    clip: tuple[float, float]
    loss_aggregation: str
    is_scaled_by_group: bool
    temperature: float
    top_k: int | None
    checkpoint_every: int
    """In rollout steps."""
    seed: int


def meant(spec: RunSpec) -> Meant:
    """What the spec says."""
    training = spec.training
    algorithm = spec.algorithm
    return Meant(
        prompts_per_step=training.prompts_per_step,
        group_size=training.group_size,
        episodes_per_update=training.prompts_per_step
        * training.group_size
        // training.updates_per_step,
        updates_per_step=training.updates_per_step * training.passes_per_step,
        num_steps=training.num_steps,
        learning_rate=training.learning_rate,
        lr_schedule=training.lr_schedule.value,
        warmup_updates=training.warmup_updates,
        weight_decay=training.weight_decay,
        adam=(training.adam_beta1, training.adam_beta2),
        max_grad_norm=training.max_grad_norm,
        kl_coef=training.kl_coef,
        entropy_coef=training.entropy_coef,
        clip=(algorithm.clip_low, algorithm.clip_high),
        loss_aggregation=algorithm.loss_aggregation.value,
        is_scaled_by_group=algorithm.advantage_scale == "group_std",
        temperature=training.temperature,
        top_k=training.top_k,
        checkpoint_every=training.checkpoint_every,
        seed=spec.seed,
    )


def differences(spec: RunSpec, received: Meant) -> dict[str, tuple[Any, Any]]:
    """Field -> what the spec says and what the trainer reads, where they differ."""
    said = asdict(meant(spec))
    read = asdict(received)
    return {name: (said[name], read[name]) for name in said if said[name] != read[name]}


def nothing_of_its_own(_: random.Random) -> dict[str, Any]:
    return {}


def random_specs(
    backend: str,
    count: int,
    seed: int = 0,
    own: Callable[[random.Random], dict[str, Any]] = nothing_of_its_own,
) -> Iterator[RunSpec]:
    """Specs that the backend takes: four in ten of what is drawn, or so.

    Args:
        own: draws further overrides, of what the backend's test reads back itself; they go before the common ones.
    """
    draw = random.Random(seed)
    found = tries = 0
    while found < count:
        tries += 1
        assert tries < 40 * count, f"backend={backend} takes hardly any spec"
        values = _values(draw) | own(draw)
        overrides = [f"{key}={value}" for key, value in values.items()]
        spec = compose(["env=whodunit", "hardware=a100x4", f"backend={backend}", *overrides])
        if not spec_refusals(spec):
            found += 1
            yield spec


def _values(draw: random.Random) -> dict[str, Any]:
    micro = draw.choice([1, 2, 4])
    updates = draw.choice([1, 1, 2, 4])
    group = draw.choice([2, 4, 8])
    return {
        "seed": draw.randrange(2**31),
        "training.num_steps": draw.randint(1, 500),
        "training.micro_batch_size": micro,
        "training.updates_per_step": updates,
        "training.group_size": group,
        "training.prompts_per_step": updates * micro * 4 * draw.randint(1, 3),
        "training.passes_per_step": draw.choice([1, 1, 1, 2]),
        "training.learning_rate": 10 ** draw.uniform(-7, -4),
        "training.lr_schedule": draw.choice(["constant", "constant", "linear", "cosine"]),
        "training.warmup_updates": draw.choice([0, 1, 7]),
        "training.weight_decay": draw.choice([0.0, 0.01, 0.1]),
        "training.adam_beta1": draw.uniform(0.8, 0.95),
        "training.adam_beta2": draw.uniform(0.9, 0.999),
        "training.max_grad_norm": draw.uniform(0.1, 2.0),
        "training.kl_coef": draw.choice([0.0, 0.001, 0.05]),
        "training.entropy_coef": draw.choice([0.0, 0.0, 0.01]),
        "training.temperature": draw.uniform(0.5, 1.5),
        "training.top_k": draw.choice(["null", 20, 50]),
        "training.checkpoint_every": draw.randint(1, 50),
        "algorithm.clip_low": draw.uniform(0.1, 0.3),
        "algorithm.clip_high": draw.uniform(0.1, 0.4),
        "algorithm.loss_aggregation": draw.choice(["token_mean", "sequence_mean", "constant"]),
        "algorithm.advantage_scale": draw.choice(["group_std", "none"]),
    }
