"""What Slime cannot do, in xp's words: each refusal names the field and the way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from xp.backends.base import Refusal
from xp.backends.batch import batch_refusals
from xp.backends.extent import num_steps
from xp.backends.slime.control.architecture import architecture_flags, architecture_refusals, family_refusal
from xp.backends.slime.control.flags import Flags, catalog, fault, given
from xp.backends.slime.control.knobs import FIXED, KNOBS
from xp.backends.slime.worker.config import warm_up_too_long
from xp.spec import (
    AdvantageScale,
    Attention,
    DType,
    EngineName,
    Estimator,
    ImportanceCorrection,
    LossAggregation,
    PolicyLoss,
    RatioLevel,
    RunSpec,
    Strategy,
)

PLACED: Mapping[str, str] = {
    "--prompt-data": "env",
    "--eval-prompt-data": "env",
    "--load": "training.initial_checkpoint",
    "--ref-load": "model.path",
    "--save": "outputs",
    "--save-hf": "outputs",
    "--megatron-config-path": "training.critic_learning_rate",
}
"""Flags that hold a path of the run -> the field behind them."""

TAKEN: Mapping[str, str] = {
    "--custom-config-path": "xp's own functions read it",
    "--custom-rm-path": "the reward is the Outcome's; set env.reward or env.reward_fn",
    "--rm-type": "the reward is the Outcome's; set env.reward or env.reward_fn",
    "--rm-url": "the reward is the Outcome's; set env.reward or env.reward_fn",
    "--group-rm": "the reward is the Outcome's; set env.reward or env.reward_fn",
    "--num-epoch": "set training.epochs",
    "--rollout-shuffle": "the order of tasks is xp's; set training.shuffle",
    "--rollout-max-prompt-len": "set training.max_prompt_tokens",
    "--apply-chat-template": "xp renders prompts itself; set model.chat_template",
    "--apply-chat-template-kwargs": "set model.chat_template",
    "--rollout-stop-token-ids": "a turn ends at the model's own end tokens; set training.stop for texts beside them",
    "--partial-rollout": "an episode is played in one step",
    "--fp16": "set model.dtype",
    "--recompute-activations": "set training.gradient_checkpointing",
    "--lr-warmup-fraction": "set training.warmup_updates",
    "--lr-warmup-samples": "set training.warmup_updates",
    "--disable-rewards-normalization": "set algorithm.advantage_scale",
    "--disable-compute-advantages-and-returns": "the update needs them; set algorithm.estimator",
    "--custom-loss-function-path": "Slime would ignore it beside its policy loss; set algorithm.policy_loss",
    "--use-wandb": "set tracking=[wandb]",
    "--wandb-key": "a key belongs into the environment; set tracking=[wandb]",
    "--debug-rollout-only": "the run would not train",
    "--debug-train-only": "the run would play no episode",
    "--load-debug-rollout-data": "the run would play no episode",
}
"""Flags that xp does not write and that would undo what it does -> what to do instead."""


def refusals(spec: RunSpec) -> list[Refusal]:
    """Everything in the spec that this backend cannot do."""
    if spec.hardware.accelerator == "cpu":
        return [
            Refusal(
                "hardware",
                "Slime trains on GPUs only: choose hardware=h100x8 or the like; `make rehearse-slime` plays its"
                " rollouts on a CPU, where checkouts of Slime and Megatron-LM are given",
            )
        ]
    if (family := family_refusal(spec)) is not None:
        return [family]
    found = [*_place(spec), *_model(spec), *_mathematics(spec), *_lengths(spec), *_start(spec)]
    # The arithmetic is about the layouts that are left.
    return found or [*batch_refusals(spec), *_overrides(spec)]


def _place(spec: RunSpec) -> Iterator[Refusal]:
    parallel, engine = spec.backend.parallel, spec.backend.engine
    if parallel.strategy is not Strategy.MEGATRON:
        yield Refusal(
            "backend.parallel.strategy",
            f"Slime trains with Megatron only, not {parallel.strategy}; set megatron, or use backend=skyrl or trl",
        )
    if parallel.offload_parameters:
        yield Refusal(
            "backend.parallel.offload_parameters",
            "Megatron keeps what it trains on the accelerator; set it to false, and where memory is short"
            " backend.parallel.offload_optimizer=true, or backend.parallel.tensor higher",
        )
    if spec.backend.attention is not Attention.FLASH:
        yield Refusal("backend.attention", "Megatron's other choices are proven by nobody here; set flash")
    if engine.name is not EngineName.SGLANG:
        yield Refusal(
            "backend.engine.name",
            f"Slime generates with SGLang only; set sglang, or use backend=skyrl for {engine.name}",
        )


def _model(spec: RunSpec) -> Iterator[Refusal]:
    yield from architecture_refusals(spec)
    if spec.model.lora is not None:
        yield Refusal("model.lora", "Slime has no adapters; set it to null, or use backend=skyrl or trl")
    if spec.model.dtype is not DType.BFLOAT16:
        yield Refusal("model.dtype", "Slime trains in bfloat16 with float32 main parameters; set bfloat16")


def _mathematics(spec: RunSpec) -> Iterator[Refusal]:
    algorithm, training = spec.algorithm, spec.training
    whitened = (Estimator.REINFORCE_PP, Estimator.GAE)
    if algorithm.advantage_scale is AdvantageScale.BATCH_STD and algorithm.estimator not in whitened:
        yield Refusal(
            "algorithm.advantage_scale",
            f"Slime scales {algorithm.estimator} by the group or not at all; set group_std or none, or backend=trl",
        )
    if algorithm.estimator is Estimator.GAE:
        yield from _critic(spec)
    if algorithm.loss_aggregation is LossAggregation.CONSTANT:
        yield Refusal(
            "algorithm.loss_aggregation",
            "Slime has no constant normaliser; set token_mean or sequence_mean, or use backend=skyrl",
        )
    if algorithm.importance_correction is ImportanceCorrection.SEQUENCE:
        yield Refusal(
            "algorithm.importance_correction",
            "Slime weighs tokens only; set token or none, or use backend=skyrl or trl",
        )
    if training.passes_per_step > 1:
        yield Refusal(
            "training.passes_per_step",
            "Slime passes over a step's episodes once; set it to 1 and updates_per_step higher, or use backend=skyrl"
            " or trl",
        )
    if taken := [text for text in training.stop if text.startswith("-")]:
        yield Refusal(
            "training.stop",
            f"Slime's command line would read {taken[0]!r} as a flag of its own; begin it with another character, or"
            " use backend=skyrl or trl",
        )
    if training.top_p < 1:
        yield Refusal(
            "training.top_p",
            "Slime would need each token's nucleus for the update; set it to 1, or use backend=skyrl or trl",
        )
    # Of epochs whose steps nobody knows yet, the train stage asks again.
    if training.warmup_updates and (steps := num_steps(spec)) is not None:
        updates = steps * training.updates_per_step
        if training.warmup_updates >= updates:
            yield Refusal("training.warmup_updates", warm_up_too_long(updates))


def _critic(spec: RunSpec) -> Iterator[Refusal]:
    """Slime's `ppo` is a critic and a loss in one; no Hugging Face model has its critic's output layer."""
    algorithm = spec.algorithm
    for field, own, only in (
        ("policy_loss", algorithm.policy_loss, PolicyLoss.CLIP),
        ("ratio_level", algorithm.ratio_level, RatioLevel.TOKEN),
    ):
        if own is not only:
            way_out = f"set {only}, or use another algorithm.estimator"
            yield Refusal(f"algorithm.{field}", f"Slime's critic comes with PPO's own loss; {way_out}")
    if not spec.backend.convert_model:
        yield Refusal(
            "backend.convert_model",
            "Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory; set it to true",
        )


def _start(spec: RunSpec) -> Iterator[Refusal]:
    """Source: slime/backends/megatron_utils/hf_to_megatron, which knows no output layer of a critic."""
    if spec.training.initial_checkpoint is not None and spec.algorithm.critic is not None:
        yield Refusal(
            "training.initial_checkpoint",
            "Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory; make the checkpoint"
            " the model (model.path), or use backend=skyrl or algorithm=grpo",
        )


def _lengths(spec: RunSpec) -> Iterator[Refusal]:
    training = spec.training
    longest = training.max_prompt_tokens + training.max_response_tokens
    if longest > spec.model.max_context_tokens:
        yield Refusal(
            "training.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {longest} is more than the {spec.model.max_context_tokens}"
            f" tokens that model={spec.model.name} can take; lower one of them",
        )


def _overrides(spec: RunSpec) -> Iterator[Refusal]:
    """Call only where the rest of the spec can be rendered."""
    owned = owners(spec)
    by_dest = {catalog().flags[name].dest: name for name in owned}
    for name, values in given(spec.backend.overrides).items():
        key = name.removeprefix("--")
        field = f"backend.overrides.{key}"
        known = catalog().flags.get(name)
        mine = name if name in owned else by_dest.get(known.dest) if known else None
        if mine is not None:
            way_out = f"set {owned[mine]}" if owned[mine] else "it has the same value for every run"
            as_what = "" if mine == name else f" as {mine}"
            yield Refusal(field, f"xp renders this flag itself{as_what}; {way_out}")
        elif name in TAKEN:
            yield Refusal(field, f"not beside xp: {TAKEN[name]}")
        elif name in (beside := _unheard(spec)):
            yield Refusal(field, beside[name])
        elif wrong := fault(name, values):
            yield Refusal(field, wrong)


def _unheard(spec: RunSpec) -> Mapping[str, str]:
    """Flags that Slime would pass over in silence, or stop at on the cluster, beside this algorithm."""
    found: dict[str, str] = {}
    if spec.algorithm.policy_loss is PolicyLoss.CISPO:
        found["--eps-clip-c"] = "Slime's cispo has no dual clip and would ignore it; set algorithm.policy_loss=clip"
    if spec.algorithm.estimator is Estimator.GAE:
        found["--release-train"] = "Slime cannot release a critic; use another algorithm.estimator"
    return found


def owners(spec: RunSpec) -> dict[str, str]:
    """Flag -> the field that it comes from, whether this spec writes it or not; empty where every run has the same."""
    assert spec.model.architecture is not None  # architecture_refusals: refused before
    network: Flags = architecture_flags(spec.model.architecture)
    return {
        **dict.fromkeys(FIXED, ""),
        **dict.fromkeys(network, "model.architecture"),
        **PLACED,
        **{name: field for field, knob in KNOBS.items() for name in knob(spec)},
        "--custom-advantage-function-path": "algorithm=custom algorithm.advantage_fn=package.module:function",
    }
