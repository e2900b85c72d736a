"""How SkyRL sees a spec: its processes, the groups of keys that several columns write, and packed episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xp.fields import shared
from xp.fields.batch_shape import batch_shape
from xp.fields.field import Column
from xp.fields.shared import (
    has_critic,
    has_own_decoding,
    is_megatron,
    is_on_cpu,
    model_config,
    network_fields,
)
from xp.lib.nested import flat
from xp.spec import Attention, LrSchedule, RunSpec
from xp.worker import skyrl_names

Keys = dict[str, Any]
ALGORITHM = "trainer.algorithm"
ENGINE = "generator.inference_engine"
CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
"""vLLM's worker on a CPU; without this name, SkyRL's server starts the one of CUDA on every platform."""
MEGATRON = ("trainer.policy.megatron_config", "trainer.ref.megatron_config")
MICRO_BATCHES = (
    "trainer.micro_train_batch_size_per_gpu",
    "trainer.micro_forward_batch_size_per_gpu",
)


@dataclass(frozen=True)
class Workers:
    """Training processes, one per accelerator (or per share of the CPU)."""

    num_nodes: int
    per_node: int

    @property
    def total(self) -> int:
        return self.num_nodes * self.per_node


def workers(spec: RunSpec) -> Workers:
    """The processes that train; have no meaning for a spec that violates a constraint."""
    batch = batch_shape(spec)
    num_engine_accelerators = batch.engine_accelerators or 0
    # Separate engines use whole machines if possible, else the same share of each.
    nodes_left = batch.num_nodes - num_engine_accelerators // batch.per_node
    is_by_node = num_engine_accelerators % batch.per_node == 0 and nodes_left > 0
    return Workers(
        num_nodes=nodes_left if is_by_node else batch.num_nodes,
        per_node=batch.per_node - (0 if is_by_node else num_engine_accelerators // batch.num_nodes),
    )


def has_stub(spec: RunSpec) -> bool:
    """Returns whether xp's own engine replaces vLLM."""
    return is_on_cpu(spec) and has_own_decoding(spec)


def cpu_servers(spec: RunSpec) -> Keys:
    """Keys of vLLM's servers on a CPU: its own worker, no Ray executor or sleep, weights over gloo; else empty."""
    if not is_on_cpu(spec) or has_stub(spec):
        return {}
    return {
        f"{ENGINE}.distributed_executor_backend": "mp",
        f"{ENGINE}.engine_init_kwargs.enable_sleep_mode": False,
        f"{ENGINE}.engine_init_kwargs.worker_cls": CPU_WORKER,
        f"{ENGINE}.engine_init_kwargs.worker_extension_cls": skyrl_names.EXTENSION,
    }


def trained(spec: RunSpec) -> tuple[str, ...]:
    """SkyRL's names of the trained networks."""
    if has_critic(spec):
        return "policy", "critic"
    return ("policy",)


def roles(spec: RunSpec) -> tuple[str, ...]:
    """SkyRL's names of all networks."""
    return (*trained(spec), "ref")


def optimizer_keys(spec: RunSpec, key: str, value: Any) -> Keys:
    """The key for each optimizer."""
    return {f"trainer.{role}.optimizer_config.{key}": value for role in trained(spec)}


def sampling_keys(key: str, value: Any) -> Keys:
    """The key for rollouts and evaluation, since one given evaluation key resets all the others."""
    return {
        f"generator.{sampling}.{key}": value
        for sampling in ("sampling_params", "eval_sampling_params")
    }


def megatron_keys(spec: RunSpec, key: str, value: Any) -> Keys:
    """The key for Megatron's networks; nothing under FSDP2."""
    if is_megatron(spec):
        return {f"{place}.{key}": value for place in MEGATRON}
    return {}


def fsdp_keys(spec: RunSpec, of: tuple[str, ...], values: Mapping[str, Any]) -> Keys:
    """The keys for these networks under FSDP2; nothing under Megatron."""
    if is_megatron(spec):
        return {}
    return {
        f"trainer.{role}.fsdp_config.{key}": value for role in of for key, value in values.items()
    }


def not_on_cpu(fix: str) -> str:
    """Returns why the rehearsal refuses a value."""
    return f"not on hardware=cpu; {fix}, or choose hardware with accelerators"


REMOVE_PADDING: Final = "trainer.remove_microbatch_padding"
TEXT_BRIDGES: Final = ("kimi_k2", "qwen3_5_moe_text", "qwen3_5_text")
"""Text networks that SkyRL's Megatron takes out of a whole checkpoint with `language_model_only`.

Source: skyrl 0.4.0, workers/megatron/model_bridges.py `_QWEN35_LM_SENTINEL` and `KimiK25TextBridge`.
"""
PUBLISHED_WHOLE: Final = ("qwen3_5_moe_text", "qwen3_5_text")
"""Text networks whose checkpoints on the hub have a vision part, where config.json is not at hand."""
PACKED_STATES: Final = ("nemotron_h", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
"""Recurrent networks whose layers Megatron resets at the beginning of each packed episode.

Gated delta layers read `cu_seqlens`, Mamba's `total_tokens`: skyrl 0.4.0, distributed/megatron/megatron_utils.py
`preprocess_packed_seqs` gives both.
"""


def is_multimodal(spec: RunSpec) -> bool:
    """Returns whether the checkpoint has parts for pictures or sound."""
    if shared.has_media(spec):
        return True
    # The table of common models has the text network alone.
    is_whole_config = "architectures" in (model_config(spec) or {})
    return not is_whole_config and _family(spec) in PUBLISHED_WHOLE


def is_text_taken_out(spec: RunSpec) -> bool:
    """Returns whether Megatron builds the text network alone of a checkpoint with media."""
    return is_megatron(spec) and is_multimodal(spec) and _family(spec) in TEXT_BRIDGES


def can_pack(spec: RunSpec) -> bool:
    """Returns whether SkyRL can make one sequence without padding of a micro-batch's episodes.

    Under FSDP2, recurrent layers of transformers 5.8 get positions alone and would read the episode before
    (workers/model_wrapper.py), and a whole network with media is never packed (`HFModelWrapper.forward`,
    `_assert_vlm_supported` of megatron_model_wrapper.py).
    """
    if spec.backend.attention is not Attention.FLASH:
        return False
    if is_multimodal(spec) and not is_text_taken_out(spec):
        return False
    if not network_fields(spec).get("recurrent_layers"):
        return True
    return is_megatron(spec) and _family(spec) in PACKED_STATES


def is_packed(spec: RunSpec) -> bool:
    """Returns whether SkyRL does so: the user's own key may say that it does not."""
    chosen = flat(spec.backend.overrides).get(REMOVE_PADDING)
    return can_pack(spec) and chosen is not False


def _family(spec: RunSpec) -> str | None:
    return network_fields(spec).get("model_type")


SCHEDULER = {
    # Without warm-up updates, the rate is constant from the start.
    LrSchedule.CONSTANT: "constant_with_warmup",
    LrSchedule.LINEAR: "linear",
    LrSchedule.COSINE: "cosine",
}
SCHEDULES = "xp's schedule in SkyRL's FSDP worker"


def other_schedule(spec: RunSpec, schedule: LrSchedule) -> str | None:
    """Returns why a schedule is not supported."""
    if not is_megatron(spec) or schedule is LrSchedule.CONSTANT:
        return None
    return f"SkyRL's Megatron supports only constant, not {schedule.value}; set it, or backend.parallel.strategy=fsdp2"


def warmup_note(spec: RunSpec, warmup: int) -> str:
    """Note on the warm-up. Source: skyrl_train/distributed/megatron/optimizer.py, whose `init_lr` has no key in
    SkyRL."""
    if is_megatron(spec) and warmup:
        return "Update k of a warm-up of N has (k-1)/N; elsewhere k/N."
    return ""


def no_rate(spec: RunSpec, warmup: int, updates: int) -> str | None:
    """Returns why the warm-up is too long; for 0 updates, which are not known yet, the stage checks again."""
    if is_megatron(spec) and warmup >= updates > 0:
        return skyrl_names.warm_up_too_long(updates)
    return None


MIN_RATE = Column(
    implemented_by=lambda s: "nothing: the rate is constant" if is_megatron(s) else SCHEDULES
)
