"""Refusals by the values of a spec alone: xp's own, which are the same on every backend, beside the trainer's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xp.models.files import config_of
from xp.models.network import may_have_heads
from xp.planning.backend import backend_of
from xp.planning.rows import Refusal
from xp.planning.shared_rows import OF_EPISODES, has_correction
from xp.spec import (
    Architecture,
    DType,
    EngineName,
    Estimator,
    KlEstimator,
    RunSpec,
    SpeculativeMethod,
)
from xp.spec.sft import SOLVE
from xp.spec.training import Unfinished
from xp.worker.adapters import NOT_TIED, TIED


def spec_refusals(spec: RunSpec) -> list[Refusal]:
    """Refusals by the values of the spec alone: xp's own and the trainer's."""
    return [*value_refusals(spec), *backend_of(spec).check(spec)]


def value_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses values that xp itself cannot carry out, the same on every backend."""
    model = spec.model
    algorithm = spec.algorithm
    training = spec.training
    evaluation = spec.evaluation
    overlong = algorithm.overlong
    if overlong is not None and overlong.buffer_tokens > training.max_response_tokens:
        reason = f"buffer_tokens is more than training.max_response_tokens={training.max_response_tokens}; lower it"
        yield Refusal("algorithm.overlong", reason)
    is_tied = model.architecture is not None and model.architecture.tied_embeddings
    if (
        is_tied
        and model.lora is not None
        and not {*TIED}.isdisjoint(model.lora.target_modules or ())
    ):
        yield Refusal("model.lora", NOT_TIED)
    for section, most in (
        ("training", training.max_response_tokens),
        ("evaluation", evaluation.max_response_tokens),
    ):
        if most is not None:
            longest = training.max_prompt_tokens + most
            if longest > model.max_context_tokens:
                yield Refusal(
                    f"{section}.max_response_tokens",
                    f"max_prompt_tokens + max_response_tokens = {longest} is more than the {model.max_context_tokens}"
                    f" tokens of the context of model={model.name}; lower one of them",
                )
    if spec.sft.data is not None and (spec.sft.max_tokens or 0) > model.max_context_tokens:
        excess = f"{spec.sft.max_tokens} is more than the {model.max_context_tokens} tokens of the context of"
        yield Refusal("sft.max_tokens", f"{excess} model={model.name}; lower it")
    if training.group_size == 1:
        needs = _needs_groups(spec)
        if needs is not None:
            yield Refusal("training.group_size", f"{needs}; set 2 or more")
    if training.generation_prompts is not None and not algorithm.dynamic_sampling:
        yield Refusal(
            "training.generation_prompts",
            "without algorithm.dynamic_sampling a step plays the tasks that it trains on; set null, or true there",
        )
    if training.budget_usd is not None and spec.hardware.usd_per_hour is None:
        yield Refusal(
            "training.budget_usd",
            "the price of the machines is not known; set hardware.usd_per_hour=N",
        )
    if training.reference_every is not None and training.kl_coef == 0:
        yield Refusal(
            "training.reference_every",
            "training.kl_coef=0 has no reference to copy into; set null, or training.kl_coef",
        )
    for name in ("keep_best", "patience"):
        if getattr(evaluation, name) and evaluation.every is None:
            reason = "without evaluation.every there is no evaluation while training; set it"
            yield Refusal(f"evaluation.{name}", reason)
    if training.max_staleness == 0 and training.unfinished is not Unfinished.WAIT:
        yield Refusal(
            "training.unfinished",
            "with training.max_staleness=0 a step's episodes have ended when the engine gets new weights; set wait, or"
            " training.max_staleness above 0",
        )
    if training.max_staleness > 0 and not has_correction(spec):
        yield Refusal(
            "training.max_staleness",
            "these episodes are of an older policy, and the update needs a correction for it; set"
            " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or"
            " training.max_staleness=0",
        )
    for name, member in spec.env.members.items() if spec.sft.data == SOLVE else ():
        if ":" not in (member.serve or member.grader or ""):
            yield Refusal(
                "sft.data",
                f"environment {name} has no class here (env.serve, env.grader), so no `solve`; name a function:"
                " sft.data=solve:module:function",
            )
    yield from _engine_refusals(spec)


def value_warnings(spec: RunSpec) -> list[str]:
    """Sentences on values that run on every backend but do not do what their name says."""
    is_k1_in_loss = (
        spec.training.kl_coef > 0
        and spec.algorithm.kl_estimator is KlEstimator.K1
        and not spec.algorithm.use_kl_in_reward
    )
    if not is_k1_in_loss:
        return []
    # arXiv:2506.09477: the gradient of k1 is that of the policy's own log-probability, whose mean is 0.
    return [
        "algorithm.kl_estimator=k1 in the loss has an expected gradient of 0 on the policy's own tokens: it adds noise"
        " and does not hold the policy near the reference; set k2 or k3, or algorithm.use_kl_in_reward=true"
    ]


def untried_lines(spec: RunSpec) -> list[str]:
    """A warning for each setting of a spec that nobody has tried, with the reason why it may fail."""
    notes = (
        f"{field}: {sentence}"
        for field, meaning in backend_of(spec).meanings(spec).items()
        for sentence in re.findall(r"Not tried: .*", meaning.note)
    )
    is_on_cpu = spec.hardware.accelerator == "cpu" and spec.backend.engine.speculative is not None
    key = "backend.engine.speculative"
    return [
        *notes,
        *([f"{key}: Not tried: tokens that are guessed on a CPU."] if is_on_cpu else []),
    ]


def _needs_groups(spec: RunSpec) -> str | None:
    """What needs more than one episode of a task, with the reason. None means nothing."""
    algorithm = spec.algorithm
    distill = algorithm.distill
    has_baseline = distill is None or distill.beside_reward
    if has_baseline and algorithm.estimator in (*OF_EPISODES, Estimator.REINFORCE_PP_BASELINE):
        return f"the baseline of algorithm.estimator={algorithm.estimator} is a mean over other episodes of the task"
    for name in ("dynamic_sampling", "zero_variance_filter"):
        if getattr(algorithm, name):
            return f"algorithm.{name} leaves groups with equal rewards out, and so every group of one episode"
    if spec.env.scores_groups:
        return "the group's rewards (env.group_reward_fn, env.judge) compare episodes"
    return None


def _has_heads(spec: RunSpec, shape: Architecture) -> bool:
    model = spec.model
    config = config_of(model.path, Path(spec.outputs), model.revision)
    return may_have_heads(shape.model_dump(), config)


def _engine_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses settings that no engine can have."""
    engine = spec.backend.engine
    training = spec.training
    shape = spec.model.architecture
    key = "backend.engine"
    model = f"model={spec.model.name}"
    if engine.name is EngineName.TRANSFORMERS:
        for name in ("quantization", "kv_cache_dtype", "expert_parallel", "speculative"):
            off = 1 if name == "expert_parallel" else None
            if getattr(engine, name) != off:
                reason = f"xp's own decoding has no such setting; set {off or 'null'}, or on a GPU {key}.name=vllm"
                yield Refusal(f"{key}.{name}", reason)
        return
    is_on_cpu = spec.hardware.accelerator == "cpu"
    # vLLM 0.30, quantization/fp8.py `get_supported_act_dtypes`.
    if engine.quantization is not None and (is_on_cpu or spec.model.dtype is DType.FLOAT32):
        yield Refusal(
            f"{key}.quantization", "the engine quantises weights of bfloat16 on a GPU; set null"
        )
    for name in ("quantization", "kv_cache_dtype"):
        if getattr(engine, name) is not None and not has_correction(spec):
            yield Refusal(
                f"{key}.{name}",
                "the engine's probabilities then differ from the trainer's, and the update needs a correction for it;"
                " set algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or null"
                " here",
            )
    if engine.expert_parallel > 1 and shape is not None and not shape.num_experts:
        yield Refusal(
            f"{key}.expert_parallel", f"{model} is dense and has no experts to divide; set 1"
        )
    elif shape is not None and (shape.num_experts or 0) % engine.expert_parallel:
        reason = f"must divide the {shape.num_experts} experts of {model}; got {engine.expert_parallel}; set a divisor"
        yield Refusal(f"{key}.expert_parallel", reason)
    if engine.speculative is not None:
        is_of_heads = engine.speculative.method is SpeculativeMethod.MTP
        if is_of_heads and shape is not None and not _has_heads(spec, shape):
            yield Refusal(
                f"{key}.speculative",
                f"{model} has no heads of multi-token prediction; set null, or method=draft with a smaller model on"
                " backend=trl",
            )
        # vLLM 0.30, sampling_params.py `_validate_spec_decode`.
        if training.min_p > 0:
            reason = f"engines that guess tokens have no min_p; set 0, or {key}.speculative=null"
            yield Refusal("training.min_p", reason)
    is_cut = (
        training.top_p < 1
        or training.top_k is not None
        or training.min_p > 0
        or training.repetition_penalty != 1
    )
    if engine.name is EngineName.VLLM and is_cut and training.max_logprob_gap is not None:
        yield Refusal(
            "training.max_logprob_gap",
            "vLLM's log-probabilities are those after top_p, top_k, min_p and repetition_penalty, the trainer's those"
            " before, so the gap does not show whether the weights agree; set null, or all of them off",
        )
