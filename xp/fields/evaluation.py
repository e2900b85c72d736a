"""The section `evaluation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xp.fields.field import OWN, Column, Field, Native, by_xp
from xp.fields.shared import past_context
from xp.spec import RunSpec
from xp.worker.skyrl_names import AT_THE_END
from xp.worker.slime_names import EVALUATE, LOG_EVALUATION

WITHOUT_EVALUATIONS = "without evaluation.every there is no evaluation while training; set it"
# SkyRL
EVALUATED = "generator.eval_sampling_params"


# Slime
def evaluation_flags(spec: RunSpec) -> Native:
    """Flags of evaluation by Slime's rollout, with one line of data per episode.

    The training's program makes the interval a divisor of the number of steps, which a plan may not know yet.
    """
    flags = {
        "--eval-interval": spec.evaluation.every or 1,
        "--eval-function-path": EVALUATE,
        "--n-samples-per-eval-prompt": 1,
        "--custom-eval-rollout-log-function-path": LOG_EVALUATION,
    }
    if spec.env.is_held_out:
        return flags
    return dict.fromkeys(flags)


def _evaluated(flag: str, value: Callable[[RunSpec], Any]) -> Column:
    """Column of the sampling of held-out episodes."""
    return Column(lambda s: {flag: value(s) if s.env.is_held_out else None})


def _without_export(spec: RunSpec) -> str | None:
    """Returns why an evaluation's step may have no model, since Slime exports only with checkpoints. None means that it
    has."""
    every = spec.evaluation.every
    training = spec.training
    name = "checkpoint_every" if training.export_every is None else "export_every"
    export = getattr(training, name)
    if every is None or every % export == 0:
        return None
    return (
        f"Slime exports a model with a checkpoint, every {export} steps; set training.{name} to a divisor of"
        f" evaluation.every={every}, or use backend=trl or skyrl"
    )


EVALUATION = (
    *by_xp(
        {
            "evaluation.num_tasks": "xp.tasks.schedule",
            "evaluation.samples_per_task": "xp.tasks.schedule",
        }
    ),
    Field(
        "evaluation.temperature",
        skyrl=f"{EVALUATED}.temperature",
        slime=_evaluated("--eval-temperature", lambda s: s.evaluation.temperature),
        xp="xp.worker.token_budget",
    ),
    Field(
        "evaluation.top_p",
        skyrl=f"{EVALUATED}.top_p",
        slime=_evaluated("--eval-top-p", lambda s: s.evaluation.top_p),
        xp="xp.worker.token_budget",
    ),
    Field(
        "evaluation.top_k",
        skyrl=Column(f"{EVALUATED}.top_k", lambda top_k: top_k or -1),
        slime=_evaluated("--eval-top-k", lambda s: s.evaluation.top_k or -1),
        xp="xp.worker.token_budget",
    ),
    Field(
        "evaluation.max_tokens_per_turn",
        skyrl=Column(
            lambda s: {
                f"{EVALUATED}.max_generate_length": s.evaluation.max_tokens_per_turn
                or s.training.max_tokens_per_turn
            }
        ),
        slime=_evaluated(
            "--eval-max-response-len",
            lambda s: s.evaluation.max_tokens_per_turn or s.training.max_tokens_per_turn,
        ),
        xp="xp.worker.token_budget",
    ),
    Field(
        "evaluation.max_response_tokens",
        xp=Column(
            implemented_by="xp.worker.token_budget",
            refuse=lambda s: past_context(s, s.evaluation.max_response_tokens),
            proof=OWN,
        ),
    ),
    Field(
        "evaluation.before_training",
        skyrl=Column(
            lambda s: {
                "trainer.eval_before_train": s.evaluation.before_training and s.env.is_held_out
            }
        ),
        slime=Column(
            lambda s: {
                "--skip-eval-before-train": not s.evaluation.before_training
                if s.env.is_held_out
                else None
            },
            note_if=lambda s: s.evaluation.before_training and s.training.max_staleness,
            note="train_async.py does not evaluate first: the evaluate stage does.",
            proof="slime::sampling_ahead_has_no_evaluation_before_it",
        ),
        xp="xp.planning.stages",
    ),
    Field(
        "evaluation.every",
        skyrl=Column(
            lambda s: {
                "trainer.eval_interval": s.evaluation.every
                or (AT_THE_END if s.env.is_held_out else -1)
            },
            note="SkyRL evaluates after the last step too.",
            note_if=lambda s: s.evaluation.every,
            proof="skyrl::it_evaluates_after_the_last_step",
        ),
        slime=Column(evaluation_flags),
        xp="xp.backends.trl.worker.held_out",
    ),
    Field(
        "evaluation.keep_best",
        slime=Column(
            implemented_by="xp.worker.best: the export of that step",
            refuse_if=lambda s: s.evaluation.keep_best,
            refuse=_without_export,
            proof="slime::a_model_is_exported_with_a_checkpoint",
        ),
        xp=Column(
            implemented_by="xp.worker.best",
            refuse_if=lambda s: s.evaluation.keep_best and s.evaluation.every is None,
            refuse=WITHOUT_EVALUATIONS,
            proof=OWN,
        ),
    ),
    Field(
        "evaluation.patience",
        slime=Column(
            implemented_by="xp.worker.best; train.py is ended, and the export of the last step is the model",
            refuse_if=lambda s: s.evaluation.patience is not None,
            refuse=_without_export,
            proof="slime::a_model_is_exported_with_a_checkpoint",
        ),
        xp=Column(
            implemented_by="xp.worker.best",
            refuse_if=lambda s: s.evaluation.patience is not None and s.evaluation.every is None,
            refuse=WITHOUT_EVALUATIONS,
            proof=OWN,
        ),
    ),
    Field(
        "evaluation.batch_size",
        skyrl=Column(
            "trainer.eval_batch_size",
            note="SkyRL plays one batch after the other; each lasts as long as its longest episode.",
            proof="skyrl::batches_are_evaluated_one_by_one",
        ),
        slime=Column(
            implemented_by="xp.worker.engines.evaluate",
            note="Of the evaluate stage; the train stage plays as many as in a rollout.",
            proof="slime::evaluations_share_the_rollouts_limit",
        ),
        xp="xp.backends.trl.worker.held_out",
    ),
    Field("evaluation.pass_threshold", xp="xp.episode.metrics"),
)
