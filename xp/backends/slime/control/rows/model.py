"""Rows of `seed` and the section `model`."""

from __future__ import annotations

from xp.backends.slime.control.architecture import SHAPE, network_flags
from xp.backends.slime.control.media import media_note
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
from xp.planning.rows import Native, Pin, Row
from xp.spec import DType, RunSpec
from xp.worker.places import start_place


def _part(name: str) -> Row:
    """Row of a field of the network."""

    def flags(spec: RunSpec) -> Native:
        shape = spec.model.architecture
        if shape is None:
            return {}
        return network_flags(name, shape)

    return Row(f"model.architecture.{name}", flags)


MODEL = (
    Row("model.architecture", implemented_by="Megatron's flags of the network"),
    *(_part(name) for name in SHAPE),
    Row(
        "seed",
        lambda s: {"--seed": s.seed, "--rollout-seed": s.seed},
        note="SGLang's sampling is seeded per engine, so episodes depend on the number of engines.",
    ),
    Row(
        "model.dtype",
        {"--bf16": True},
        refuse_if=lambda s: s.model.dtype is not DType.BFLOAT16,
        refuse="Slime trains in bfloat16 with float32 main parameters; set bfloat16",
    ),
    Row("model.path", lambda s: {"--hf-checkpoint": start_place(s)}, note=media_note),
    Row("model.max_context_tokens", "--sglang-context-length"),
    Row("model.router_replay", lambda s: {"--use-rollout-routing-replay": s.model.router_replay}),
    Row("model.lora", refuse="Slime has no adapters; set it to null, or use backend=skyrl or trl"),
)


HOOK = "it is a function of xp's"
DROPOUT = Pin(0.0, "the ratio is between two passes of the same network")
PINS = {
    "--train-backend": Pin("megatron", "it is Slime's only trainer"),
    "--loss-type": Pin("policy_loss", "set sft.data, which fine-tunes in a stage of its own"),
    # Megatron's own defaults are 0.1.
    "--attention-dropout": DROPOUT,
    "--hidden-dropout": DROPOUT,
    "--attention-softmax-in-fp32": Pin(True, "softmax is computed in float32"),
    "--accumulate-allreduce-grads-in-fp32": Pin(True, "gradients are summed in float32"),
    # A resumed run may have more steps than its checkpoint knew of.
    "--override-opt-param-scheduler": Pin(
        True, "the schedule is that of the spec, also after a resume"
    ),
    "--update-weights-interval": Pin(1, "set training.max_staleness"),
    "--input-key": Pin(INPUT_KEY, "the view of tasks is xp's"),
    "--metadata-key": Pin(METADATA_KEY, "the view of tasks is xp's"),
    "--tool-key": Pin(TOOL_KEY, "the view of tasks is xp's"),
    "--custom-generate-function-path": Pin(GENERATE, HOOK),
    "--custom-reward-post-process-path": Pin(ADVANTAGES, f"{HOOK}; set algorithm.advantage_fn"),
    # Metrics are xp's: the rollout's by the first function, the update's by the second.
    "--custom-rollout-log-function-path": Pin(LOG_ROLLOUT, HOOK),
    "--custom-megatron-init-path": Pin(ENTER_TRAINING, HOOK),
    # An episode that is left out is none of an update's mean.
    "--rollout-data-postprocess-path": Pin(COUNT_TRAINED, HOOK),
    "--custom-megatron-before-train-step-hook-path": Pin(SCALE_UPDATE, HOOK),
}
FIXED = Row("", {key: pin.value for key, pin in PINS.items()})
