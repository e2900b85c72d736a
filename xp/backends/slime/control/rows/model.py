"""Rows of `seed` and the section `model`."""

from __future__ import annotations

from xp.backends.slime.control.architecture import SHAPE
from xp.backends.slime.worker.config import (
    ADVANTAGES,
    COUNT_TRAINED,
    ENTER_TRAINING,
    GENERATE,
    INPUT_KEY,
    LOG_ROLLOUT,
    METADATA_KEY,
    SCALE_UPDATE,
    TOOL_KEY,
)
from xp.planning.backend import Support
from xp.planning.rows import Native, Row, when
from xp.planning.stages import FETCHED, start_place
from xp.spec import DType, RunSpec


def _part(name: str) -> Row:
    """Row of a field of the network."""

    def flags(spec: RunSpec) -> Native:
        shape = spec.model.architecture
        return {} if shape is None else SHAPE[name](shape)

    return Row(f"model.architecture.{name}", flags)


MODEL = (
    Row("model.architecture", carried_by="Megatron's flags of the network"),
    *(_part(name) for name in SHAPE),
    Row(
        "seed",
        lambda s: {"--seed": s.seed, "--rollout-seed": s.seed},
        note="SGLang's sampling is seeded per engine, so episodes depend on the number of engines.",
    ),
    Row(
        "model.dtype",
        {"--bf16": True},
        refuse=when(
            lambda s: s.model.dtype is not DType.BFLOAT16,
            "Slime trains in bfloat16 with float32 main parameters; set bfloat16",
        ),
    ),
    Row(
        "model.path",
        lambda s: {"--hf-checkpoint": start_place(s)},
        native=("--ref-load",),
    ),
    Row("model.revision", carried_by=FETCHED),
    Row("model.max_context_tokens", "--sglang-context-length"),
    Row(
        "model.build",
        support=Support.UNSUPPORTED,
        note="A model that xp builds has no flags for Megatron.",
    ),
    Row(
        "model.chat_template",
        carried_by="arguments of the chat template, in xp.episode.tokens; earlier turns stay as written",
    ),
    Row("model.router_replay", lambda s: {"--use-rollout-routing-replay": s.model.router_replay}),
    Row(
        "model.lora",
        support=Support.UNSUPPORTED,
        note="Slime has no adapters.",
        refuse=lambda s: (
            None if s.model.lora is None else "Slime has no adapters; set it to null, or use backend=skyrl or trl"
        ),
    ),
)


FIXED = Row(
    "",
    {
        "--train-backend": "megatron",
        "--loss-type": "policy_loss",
        "--optimizer": "adam",
        # Megatron's own defaults are 0.1.
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--attention-softmax-in-fp32": True,
        "--accumulate-allreduce-grads-in-fp32": True,
        # A resumed run may have more steps than its checkpoint knew of: the spec's schedule holds.
        "--override-opt-param-scheduler": True,
        "--update-weights-interval": 1,
        "--input-key": INPUT_KEY,
        "--metadata-key": METADATA_KEY,
        "--tool-key": TOOL_KEY,
        "--custom-generate-function-path": GENERATE,
        "--custom-reward-post-process-path": ADVANTAGES,
        # Metrics are xp's: the rollout's by the first function, the update's by the second.
        "--custom-rollout-log-function-path": LOG_ROLLOUT,
        "--custom-megatron-init-path": ENTER_TRAINING,
        # An episode that is left out is none of an update's mean.
        "--rollout-data-postprocess-path": COUNT_TRAINED,
        "--custom-megatron-before-train-step-hook-path": SCALE_UPDATE,
    },
)
