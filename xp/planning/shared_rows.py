"""Rows that several backends have, and the conditions, sizes and reasons that their rows share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.models.files import config_of
from xp.models.network import MEDIA, stated
from xp.planning.rows import Row
from xp.spec import (
    AdvantageScale,
    Estimator,
    ImportanceCorrection,
    ImportanceMask,
    LossAggregation,
    PolicyLoss,
    RatioFrom,
    RatioLevel,
    RunSpec,
)
from xp.spec.training import Unfinished

OLDER = "Episodes of an older policy have a larger gap: it is recorded, and only episodes of age 0 can stop the run."
"""Note on `training.max_logprob_gap` where `training.max_staleness` is above 0."""

SEED_OF_TURNS = (
    "Each turn is drawn by a seed made of this one, the step, the task, the sample and the turn's number. The order of"
    " tasks is the same on every backend."
)
"""Note on `seed` where requests to the engine have seeds."""

ENDED = "nothing: a step's episodes have ended when the engine gets new weights"


def whole_episodes(trainer: str) -> Row:
    """Row of `training.unfinished` for a trainer that sends no weights while episodes are played."""
    return Row(
        "training.unfinished",
        implemented_by=ENDED,
        refuse_if=lambda s: s.training.unfinished is not Unfinished.WAIT,
        refuse=f"{trainer} sends new weights when all episodes of a step have ended; set wait, or use backend=skyrl",
    )


def sapo_rows(prefix: str) -> tuple[Row, ...]:
    """Rows of `algorithm.sapo`, with the native names `prefix` and `pos` or `neg`."""
    return (
        Row("algorithm.sapo", implemented_by="nothing: the loss is another"),
        Row("algorithm.sapo.temperature_positive", f"{prefix}pos"),
        Row("algorithm.sapo.temperature_negative", f"{prefix}neg"),
    )


OF_EPISODES = (Estimator.GRPO, Estimator.RLOO, Estimator.MAXRL)
"""Estimators that need one reward per episode, whatever its rows are, and no number of tokens."""


def has_xp_estimator(spec: RunSpec) -> bool:
    """Returns whether xp computes the advantages instead of TRL or SkyRL."""
    algorithm = spec.algorithm
    return (
        algorithm.estimator is Estimator.CUSTOM
        or algorithm.advantage_scale is AdvantageScale.BATCH_STD
    )


def depends_on_rows(spec: RunSpec, more: Mapping[str, bool]) -> str | None:
    """Returns why episodes of several rows cannot be trained on: a result would depend on how they are split.

    Args:
        more: what a backend needs too, and whether the spec has it.
    """
    algorithm = spec.algorithm
    weight = algorithm.importance_correction
    mask = algorithm.importance_mask
    needed = {
        "algorithm.ratio_level=token": algorithm.ratio_level is RatioLevel.TOKEN,
        "algorithm.importance_correction=none or token_truncate": weight
        is not ImportanceCorrection.SEQUENCE_TRUNCATE,
        "algorithm.importance_mask=none or token": mask
        in (ImportanceMask.NONE, ImportanceMask.TOKEN),
        "algorithm.estimator=grpo, rloo or maxrl": algorithm.estimator in OF_EPISODES,
        "algorithm.advantage_scale=group_std or none": algorithm.advantage_scale
        is not AdvantageScale.BATCH_STD,
        "algorithm.distill=null": algorithm.distill is None,
        "algorithm.overlong=null": algorithm.overlong is None,
        **more,
    }
    others = [value for value, is_set in needed.items() if not is_set]
    if not others or not spec.env.has_rows:
        return None
    return f"max_rows above 1 gives an episode several rows, whose split must not matter; set {', '.join(others)}"


QUANTIZED_BY_VLLM = Row(
    "backend.engine.quantized_model",
    implemented_by="nothing: vLLM quantises the model itself",
    refuse_if=lambda s: s.backend.engine.quantized_model is not None,
    refuse="vLLM quantises the model itself; set null",
)
"""Row of engines of vLLM."""


def weighs_rows(spec: RunSpec) -> dict[str, bool]:
    """What a trainer needs whose rows are weighed by their advantages, which do not weigh the KL penalty."""
    is_over_tokens = spec.algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
    return {
        "training.kl_coef=0 or algorithm.loss_aggregation=token_mean": is_over_tokens
        or not spec.training.kl_coef
    }


def no_clip(spec: RunSpec) -> str:
    """Remark on a bound of the ratio's clipping for a loss that has no clipping; empty for other losses."""
    if spec.algorithm.policy_loss is PolicyLoss.SAPO:
        return "unused: the gates of sapo are soft"
    return ""


def length_rows(key: str, per_step: Callable[[RunSpec], int] = lambda _: 1) -> tuple[Row, Row]:
    """Rows of `training.num_steps` and `training.epochs`, of which one is null.

    Args:
        key: native key of the number of steps.
        per_step: number of the trainer's steps in one rollout step.
    """

    def steps(spec: RunSpec) -> dict[str, Any]:
        number = spec.training.num_steps
        if number is None:
            return {}
        return {key: number * per_step(spec)}

    return (
        Row(
            "training.num_steps",
            steps,
            implemented_by=lambda s: (
                "nothing: training.epochs is set" if s.training.num_steps is None else ""
            ),
        ),
        # With epochs, the stage's program sets it when the number of tasks is known.
        Row(
            "training.epochs",
            lambda s: {} if s.training.epochs is None else {key: None},
            implemented_by=lambda s: (
                "nothing: training.num_steps is set"
                if s.training.epochs is None
                else f"{key} is set by the stage's program: epochs x (tasks in the manifest // prompts_per_step)"
            ),
        ),
    )


def with_sft(rows: Sequence[Row], sft: Sequence[Row], spec: RunSpec) -> tuple[Row, ...]:
    """Rows of a spec: those of the stage `sft` only if there is one, since they repeat keys of the training's."""
    return (*rows, *(sft if spec.sft.data is not None else ()))


def sft_updates(key: str) -> tuple[Row, Row]:
    """Rows of a fine-tuning's length for a trainer whose stage computes its updates; `key`: what receives them."""
    steps = "epochs x (episodes / batch_size, rounded up)"
    epochs = Row("sft.epochs", implemented_by=f"{key} is set by the stage's program: {steps}")
    return epochs, Row("sft.num_updates", implemented_by=key)


def uneven_sft_batch(ranks: int, spec: RunSpec) -> str | None:
    """Returns why the episodes of a fine-tuning's update cannot be divided among `ranks`; None if they can."""
    sft = spec.sft
    if sft.max_tokens_per_micro_batch is None:
        micro = sft.micro_batch_size
    else:
        micro = 1
    # With no rank, the layout itself is refused.
    if not ranks or sft.batch_size % (micro * ranks) == 0:
        return None
    return (
        f"must be divisible by sft.micro_batch_size x data-parallel ranks = {micro} x {ranks}; got {sft.batch_size};"
        " set such a number"
    )


def indivisible_experts(spec: RunSpec, sizes: Collection[int], what: str) -> str | None:
    """Returns why an engine's experts cannot be divided among so many accelerators; None if they can, or need not.

    Args:
        spec: the spec.
        sizes: the sizes above 1 that the engine supports.
        what: the accelerators that these sizes are of.
    """
    size = spec.backend.engine.expert_parallel
    if size in (1, *sizes):
        return None
    legal = ", ".join(map(str, sorted({1, *sizes})))
    return f"must be 1, or fit {what}: {legal}; got {size}; set one of them"


def not_ahead(spec: RunSpec, reason: str | None, *, is_colocated: bool) -> str | None:
    """Returns why sampling during updates is impossible; None if it is possible, or not needed.

    Args:
        spec: the spec.
        reason: why the trainer itself cannot do it. None means that it can.
        is_colocated: whether engines and trainer share accelerators.
    """
    if spec.training.max_staleness == 0:
        return None
    if is_colocated:
        return (
            "colocated engines and the trainer use the same accelerators by turns, so nothing can be sampled in"
            " advance; set backend.engine.placement=separate (and backend.engine.accelerators), or"
            " training.max_staleness=0"
        )
    return reason


NO_WEIGHT = "nothing: there is no weight to bound"
NO_MASK = "nothing: there is no mask"
"""What a backend receives of a bound without a weight, and of a mask and its bounds."""


def is_weighed(spec: RunSpec) -> bool:
    """Returns whether there is an importance weight."""
    return spec.algorithm.importance_correction is not ImportanceCorrection.NONE


def is_masked(spec: RunSpec) -> bool:
    """Returns whether there is an importance mask."""
    return spec.algorithm.importance_mask is not ImportanceMask.NONE


def mask_bounds(by: str) -> Iterator[Row]:
    """Rows of the bounds of an importance mask that the module `by` computes."""
    for end in ("lower", "upper"):
        yield Row(f"algorithm.mask_{end}", implemented_by=lambda s: by if is_masked(s) else NO_MASK)


def is_to_engine(spec: RunSpec) -> bool:
    """Returns whether the clipped ratio is to the engine's log-probabilities."""
    return spec.algorithm.ratio_from is RatioFrom.ENGINE


def has_correction(spec: RunSpec) -> bool:
    """Returns whether the update may use episodes of another distribution than the policy's."""
    return spec.algorithm.is_corrected or is_to_engine(spec)


def longest_episode(spec: RunSpec) -> int:
    """Tokens of the longest prompt and all its turns together."""
    return spec.training.max_prompt_tokens + spec.training.max_response_tokens


def longest_in_engine(spec: RunSpec) -> int:
    """The same for the engine, which also plays the evaluations."""
    return max(
        longest_episode(spec),
        spec.training.max_prompt_tokens + (spec.evaluation.max_response_tokens or 0),
    )


def has_media(spec: RunSpec) -> bool:
    """Returns whether the model is known to have parts for pictures or sound."""
    path = spec.model.path
    if path is None:
        return False
    config = config_of(path, Path(spec.outputs), spec.model.revision)
    return config is not None and any(config.get(key) for key in MEDIA)


def network_fields(spec: RunSpec) -> Mapping[str, Any]:
    """The fields of model.architecture: the spec's, or those that config.json states. Empty means that neither is
    known."""
    model = spec.model
    if model.architecture is not None:
        return model.architecture.model_dump()
    if model.path is None:
        config = None
    else:
        config = config_of(model.path, Path(spec.outputs), model.revision)
    return {} if config is None else stated(config)
