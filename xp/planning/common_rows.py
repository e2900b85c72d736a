"""Rows that are the same on every backend, and functions that several backends' rows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xp.planning.capability import Row
from xp.spec import EngineName, ImportanceCorrection, RunSpec

COMMON = (
    Row("model.name", carried_by="the run's record"),
    Row("model.dialect", carried_by="xp.episode"),
    Row("model.tools_prompt", carried_by="xp.episode.tokens"),
    Row("algorithm.name", carried_by="the run's record"),
    Row("evaluation.pass_threshold", carried_by="xp.episode.metrics"),
)
"""Fields that xp itself implements on every backend."""


def refreshed_tasks(spec: RunSpec) -> str | None:
    """Returns why tasks cannot be selected again with a trainer that reads all prompts before it begins."""
    if all(member.train.refresh_every is None for member in spec.env.members.values()):
        return None
    return (
        f"train.refresh_every: {spec.backend.name} takes the whole order of tasks before training; use backend=trl, or"
        " train.easy_first=true with a profile"
    )


def length_rows(key: str, per_step: Callable[[RunSpec], int] = lambda _: 1) -> tuple[Row, Row]:
    """Rows of `training.num_steps` and `training.epochs`, of which one is null.

    Args:
        key: native key of the number of steps.
        per_step: number of the trainer's steps in one rollout step.
    """

    def steps(spec: RunSpec) -> dict[str, Any]:
        number = spec.training.num_steps
        return {} if number is None else {key: number * per_step(spec)}

    return (
        Row(
            "training.num_steps",
            steps,
            receives=lambda s: "nothing: training.epochs is set" if s.training.num_steps is None else "",
        ),
        # With epochs, the stage's program sets it when the number of tasks is known.
        Row(
            "training.epochs",
            lambda s: {} if s.training.epochs is None else {key: None},
            receives=lambda s: (
                "nothing: training.num_steps is set"
                if s.training.epochs is None
                else f"{key}, from epochs x (tasks in the manifest // prompts_per_step)"
            ),
        ),
    )


def stale_uncorrected(spec: RunSpec) -> str | None:
    """Returns why episodes of an older policy cannot be used; None if they can, or if none are older."""
    is_corrected = spec.algorithm.importance_correction is not ImportanceCorrection.NONE
    if spec.training.max_staleness == 0 or is_corrected:
        return None
    return (
        "these episodes are of an older policy, and the update needs a correction for it; set"
        " algorithm.importance_correction=token (or sequence), or training.max_staleness=0"
    )


def no_best(spec: RunSpec) -> str | None:
    """Returns why no best model can be kept; None if it can, or if none is asked for."""
    return _without_evaluation(spec) if spec.evaluation.keep_best else None


def no_patience(spec: RunSpec) -> str | None:
    """Returns why training cannot stop early; None if it can, or if early stopping is not asked for."""
    return None if spec.evaluation.patience is None else _without_evaluation(spec)


def _without_evaluation(spec: RunSpec) -> str | None:
    is_set = spec.evaluation.every is not None
    return None if is_set else "without evaluation.every there is no evaluation while training; set it"


def longest_episode(spec: RunSpec) -> int:
    """Tokens of the longest prompt and all its turns together."""
    return spec.training.max_prompt_tokens + spec.training.max_response_tokens


def too_long(spec: RunSpec) -> str | None:
    """Returns why the longest episode does not fit the model's context; None if it fits."""
    if longest_episode(spec) <= spec.model.max_context_tokens:
        return None
    return (
        f"max_prompt_tokens + max_response_tokens = {longest_episode(spec)} is more than the"
        f" {spec.model.max_context_tokens} tokens of the context of model={spec.model.name}; lower one of them"
    )


OLDER = "Episodes of an older policy have a larger gap: it is recorded, and only episodes of age 0 can stop the run."
"""Note on `training.max_logprob_gap` where `training.max_staleness` is above 0."""


def cut_gap(spec: RunSpec) -> str | None:
    """Returns why `max_logprob_gap` cannot be checked; None if vLLM's log-probabilities are those of the trainer."""
    training = spec.training
    is_cut = training.top_p < 1 or training.top_k is not None
    if not is_cut or spec.backend.engine.name is not EngineName.VLLM or training.max_logprob_gap is None:
        return None
    return (
        "vLLM's log-probabilities are those after top_p and top_k, the trainer's those before, so the gap does not"
        " show whether the weights agree; set null, or top_p=1 and top_k=null"
    )
