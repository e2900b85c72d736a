"""Conditions and sizes of a spec that columns of several sections share."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from xp.lib.models.files import config_of
from xp.lib.models.network import MEDIA, stated
from xp.lib.text import word_list
from xp.spec import (
    AdvantageScale,
    EngineName,
    Estimator,
    ImportanceCorrection,
    ImportanceMask,
    Placement,
    RatioFrom,
    RunSpec,
    Strategy,
)

OF_EPISODES = (Estimator.GRPO, Estimator.RLOO, Estimator.MAXRL)
"""Estimators that need one reward per episode, whatever its rows are, and no number of tokens."""


def is_on_cpu(spec: RunSpec) -> bool:
    """Returns whether the run has no accelerators."""
    return spec.hardware.accelerator == "cpu"


def is_megatron(spec: RunSpec) -> bool:
    """Returns whether Megatron trains."""
    return spec.backend.parallel.strategy is Strategy.MEGATRON


def is_colocated(spec: RunSpec) -> bool:
    """Returns whether training and generation take turns on the same accelerators."""
    return spec.backend.engine.placement is Placement.COLOCATED


def is_ahead(spec: RunSpec) -> bool:
    """Returns whether episodes are sampled during updates."""
    return spec.training.max_staleness > 0


def uses_vllm(spec: RunSpec) -> bool:
    """Returns whether the engine is vLLM."""
    return spec.backend.engine.name is EngineName.VLLM


def has_lora(spec: RunSpec) -> bool:
    """Returns whether adapters are trained."""
    return spec.model.lora is not None


def has_critic(spec: RunSpec) -> bool:
    """Returns whether the baseline is a critic's."""
    return spec.algorithm.critic is not None


def has_kl(spec: RunSpec) -> bool:
    """Returns whether there is a KL penalty."""
    return spec.training.kl_coef > 0


def has_xp_estimator(spec: RunSpec) -> bool:
    """Returns whether xp computes the advantages instead of TRL or SkyRL."""
    algorithm = spec.algorithm
    return (
        algorithm.estimator is Estimator.CUSTOM
        or algorithm.advantage_scale is AdvantageScale.BATCH_STD
    )


def is_weighed(spec: RunSpec) -> bool:
    """Returns whether there is an importance weight."""
    return spec.algorithm.importance_correction is not ImportanceCorrection.NONE


def is_masked(spec: RunSpec) -> bool:
    """Returns whether there is an importance mask."""
    return spec.algorithm.importance_mask is not ImportanceMask.NONE


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


def model_config(spec: RunSpec) -> Mapping[str, Any] | None:
    """The model's config.json. None means that it is not known."""
    if spec.model.path is None:
        return None
    return config_of(spec.model.path, Path(spec.outputs), spec.model.revision)


def has_media(spec: RunSpec) -> bool:
    """Returns whether the model is known to have parts for pictures or sound."""
    return any((model_config(spec) or {}).get(key) for key in MEDIA)


NO_GRID = word_list("""
    gemma3 gemma4 idefics3 internvl lfm2_vl llava llava_next mistral3 smolvlm
""")
"""Families whose pictures are no patches with a grid; others are found when the training starts."""


def family_without_grid(spec: RunSpec) -> str | None:
    """The model's family if it is in NO_GRID; else None."""
    family = (model_config(spec) or {}).get("model_type")
    return family if family in NO_GRID else None


def network_fields(spec: RunSpec) -> Mapping[str, Any]:
    """The fields of model.architecture: the spec's, or those that config.json states. Empty means that neither is
    known."""
    if spec.model.architecture is not None:
        return spec.model.architecture.model_dump()
    config = model_config(spec)
    return {} if config is None else stated(config)


def past_context(spec: RunSpec, response_tokens: int | None) -> str | None:
    """Returns why an episode with such a response is longer than the model's context; None if it is not."""
    longest = spec.training.max_prompt_tokens + (response_tokens or 0)
    most = spec.model.max_context_tokens
    if response_tokens is None or longest <= most:
        return None
    return (
        f"max_prompt_tokens + max_response_tokens = {longest} is more than the {most} tokens of the context of"
        f" model={spec.model.name}; lower one of them"
    )


def has_own_decoding(spec: RunSpec) -> bool:
    """Returns whether the policy itself generates, by xp's own decoding."""
    return spec.backend.engine.name is EngineName.TRANSFORMERS


def num_steps(spec: RunSpec) -> int | None:
    """Rollout steps of the run (xp.planning.run_size). None means that they are not known yet."""
    steps: int | None = import_module("xp.planning.run_size").num_steps(spec)
    return steps


def engine_stays_awake(spec: RunSpec) -> bool:
    """Returns whether a colocated engine keeps its memory during an update (xp.planning.memory.estimate)."""
    is_awake: bool = import_module("xp.planning.memory.estimate").engine_stays_awake(spec)
    return is_awake
