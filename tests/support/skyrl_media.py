"""A small training of a checkpoint with parts for pictures on SkyRL's rehearsal, and the check of its model."""

from __future__ import annotations

from pathlib import Path

from tests.support.media_commands import weights
from tests.trainers.skyrl_parts import REHEARSAL
from xp.lib.models.weights import is_of_text

SMALL = (
    *REHEARSAL,
    "env=sums",
    "model=hf",
    "model.dtype=float32",
    "env.train.num_tasks=4",
    "env.held_out.num_tasks=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.num_steps=1",
    "training.warmup_updates=0",
    "training.updates_per_step=1",
    "training.learning_rate=1e-3",
    "training.entropy_coef=0.01",
    "training.max_tokens_per_turn=8",
    "training.max_response_tokens=64",
)


def check_model(model: Path, start: Path) -> None:
    """The text is trained, and every other weight is that of the start."""
    before = weights(start)
    after = weights(model)
    assert set(before) - set(after) <= {"lm_head.weight"}
    changed = {name for name in before if name in after and not before[name].equal(after[name])}
    assert changed
    assert all(is_of_text(name) for name in changed)
    assert not all(is_of_text(name) for name in before)
    name = "preprocessor_config.json"
    assert (model / name).read_bytes() == (start / name).read_bytes()
