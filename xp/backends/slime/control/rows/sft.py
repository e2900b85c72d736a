"""Rows of the section `sft`: flags of Slime's train.py for its loss of supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from xp.backends.slime.control.rows.algorithm import ALGORITHM
from xp.backends.slime.control.rows.training import (
    EVALUATION,
    micro_batch,
    packing,
    sequence_length,
    warmup_flags,
)
from xp.backends.slime.worker.config import (
    ENTER_SFT,
    EPISODES,
    EXAMPLES,
    STEPS_FLAG,
    warm_up_too_long,
)
from xp.planning.batch import batch_shape
from xp.planning.by_xp import BY_XP
from xp.planning.rows import Row, render
from xp.planning.shared_rows import sft_updates, uneven_sft_batch
from xp.spec import RunSpec


def ranks(spec: RunSpec) -> int:
    """Data-parallel ranks of all accelerators."""
    batch = batch_shape(spec)
    return batch.num_nodes * batch.per_node // (batch.tensor * batch.pipeline * batch.context)


def _fixed(spec: RunSpec) -> dict[str, Any]:
    """Flags of a training without engines on all accelerators, with the token mean of temperature 1."""
    unset = (
        *(
            "--colocate",
            "--use-kl-loss",
            "--use-rollout-routing-replay",
            "--group-rm",
            "--custom-rm-path",
        ),
        *(
            "--custom-generate-function-path",
            "--custom-reward-post-process-path",
            "--rollout-stop",
            STEPS_FLAG,
        ),
        "--over-sampling-batch-size",
        *render((*ALGORITHM, *EVALUATION), spec),
    )
    return dict.fromkeys(unset) | {
        "--loss-type": "sft_loss",
        "--debug-train-only": True,
        "--disable-compute-advantages-and-returns": True,
        "--calculate-per-token-loss": True,
        "--advantage-estimator": "grpo",  # only selects that there is no critic
        "--entropy-coef": 0.0,
        "--rollout-temperature": 1.0,
        "--n-samples-per-prompt": 1,
        "--num-steps-per-rollout": 1,
        "--rollout-function-path": EXAMPLES,
        "--custom-rollout-log-function-path": EPISODES,
        "--custom-megatron-init-path": ENTER_SFT,
        "--actor-num-nodes": spec.hardware.num_nodes,
        "--actor-num-gpus-per-node": spec.trainer_accelerators,
    }


def _long_warmup(spec: RunSpec) -> str | None:
    """Returns why the warm-up is too long; with epochs, the stage checks it."""
    updates = spec.sft.num_updates or spec.sft.warmup_updates
    if spec.sft.warmup_updates > updates:
        return warm_up_too_long(updates)
    return None


SFT = (
    Row("", _fixed),
    *sft_updates(STEPS_FLAG),
    Row(
        "sft.batch_size",
        lambda s: dict.fromkeys(("--rollout-batch-size", "--global-batch-size"), s.sft.batch_size),
        implemented_by="xp.backends.slime.worker.means, in the last update of an epoch",
        refuse=lambda s: uneven_sft_batch(ranks(s), s),
    ),
    Row("sft.micro_batch_size", lambda s: micro_batch(s.sft)),
    Row("sft.max_tokens_per_micro_batch", lambda s: packing(s.sft)),
    Row(
        "sft.max_tokens",
        lambda s: (
            {}
            if s.sft.max_tokens is None
            else {"--seq-length": sequence_length(s, s.sft.max_tokens)}
        ),
        implemented_by=BY_XP["sft.max_tokens"],
    ),
    Row("sft.learning_rate", "--lr"),
    Row("sft.lr_schedule", "--lr-decay-style"),
    Row("sft.min_learning_rate", "--min-lr"),
    Row("sft.warmup_updates", lambda s: warmup_flags(s.sft), refuse=_long_warmup),
    Row("sft.checkpoint_every", "--save-interval"),
)
