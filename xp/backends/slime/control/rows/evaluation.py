"""Rows of the section `evaluation`."""

from __future__ import annotations

from typing import Any

from xp.backends.slime.worker.hooks import LOG_EVALUATION
from xp.planning.rows import Row, no_best, no_patience
from xp.spec import RunSpec

HELD_OUT = "held_out"
"""Name of the evaluation's data set within Slime."""


def evaluation_flags(spec: RunSpec, every: int | None) -> dict[str, Any]:
    """Flags of evaluation by Slime's rollout, with one line of data per episode; `every` None disables it."""
    training = spec.training
    flags = {
        "--eval-interval": every,
        "--skip-eval-before-train": True,
        "--n-samples-per-eval-prompt": 1,
        "--eval-top-p": training.top_p,
        "--eval-top-k": training.top_k or -1,
        "--eval-max-response-len": training.max_tokens_per_turn,
        "--custom-eval-rollout-log-function-path": LOG_EVALUATION,
    }
    return flags if every else dict.fromkeys(flags)


def _without_export(spec: RunSpec) -> str | None:
    """Returns why an evaluation's step may have no model, since Slime exports only with checkpoints; None: it has."""
    every, checkpoint = spec.evaluation.every, spec.training.checkpoint_every
    if every is None or every % checkpoint == 0:
        return None
    return (
        f"Slime exports a model with each checkpoint, every {checkpoint} steps; set training.checkpoint_every to a"
        f" divisor of evaluation.every={every}, or use backend=trl or skyrl"
    )


EVALUATION = (
    Row("evaluation.num_tasks", carried_by="xp.tasks.rounds: lines of the held-out view"),
    Row("evaluation.samples_per_task", carried_by="xp.tasks.rounds: lines of the held-out view"),
    Row(
        "evaluation.temperature",
        lambda s: {"--eval-temperature": s.evaluation.temperature if s.evaluation.every else None},
        carried_by="the evaluate stage",
    ),
    Row("evaluation.before_training", carried_by="the evaluate stage"),
    Row("evaluation.every", lambda s: evaluation_flags(s, s.evaluation.every)),
    Row(
        "evaluation.keep_best",
        carried_by="xp.worker.best: the export of that step",
        refuse=lambda s: no_best(s) or (_without_export(s) if s.evaluation.keep_best else None),
    ),
    Row(
        "evaluation.patience",
        carried_by="xp.worker.best; train.py is ended, and the export of the last step is the model",
        refuse=lambda s: no_patience(s) or (_without_export(s) if s.evaluation.patience is not None else None),
    ),
    Row(
        "evaluation.batch_size",
        carried_by="--sglang-server-concurrency of the evaluate stage",
        note="Rounded up to whole episodes per engine.",
    ),
)
