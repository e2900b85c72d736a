"""Groups of SkyRL's keys that several rows write, and the conditions on which they depend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xp.backends.skyrl.control.constraints import is_megatron
from xp.spec import EngineName, RunSpec

Keys = dict[str, Any]

ALGORITHM = "trainer.algorithm"
ENGINE = "generator.inference_engine"
EXTENSION = "xp.backends.skyrl.worker.rehearsal.extension.SkyRLExtension"
"""Extension class of vLLM's workers in a rehearsal with the real vLLM."""
CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
"""vLLM's worker on a CPU; without this name, SkyRL's server starts the one of CUDA on every platform."""
MEGATRON = ("trainer.policy.megatron_config", "trainer.ref.megatron_config")
MICRO_BATCHES = (
    "trainer.micro_train_batch_size_per_gpu",
    "trainer.micro_forward_batch_size_per_gpu",
)


def is_rehearsal(spec: RunSpec) -> bool:
    """Returns whether SkyRL's training loop runs on the CPU."""
    return spec.hardware.accelerator == "cpu"


def has_stub(spec: RunSpec) -> bool:
    """Returns whether xp's own engine replaces vLLM."""
    return is_rehearsal(spec) and spec.backend.engine.name is EngineName.TRANSFORMERS


def cpu_servers(spec: RunSpec) -> Keys:
    """Keys of vLLM's servers on a CPU: its own worker, no Ray executor or sleep, weights over gloo; else empty."""
    if not is_rehearsal(spec) or has_stub(spec):
        return {}
    return {
        f"{ENGINE}.distributed_executor_backend": "mp",
        f"{ENGINE}.engine_init_kwargs.enable_sleep_mode": False,
        f"{ENGINE}.engine_init_kwargs.worker_cls": CPU_WORKER,
        f"{ENGINE}.engine_init_kwargs.worker_extension_cls": EXTENSION,
    }


def has_critic(spec: RunSpec) -> bool:
    return spec.algorithm.critic is not None


def trained(spec: RunSpec) -> tuple[str, ...]:
    """SkyRL's names of the trained networks."""
    if has_critic(spec):
        return "policy", "critic"
    return ("policy",)


def roles(spec: RunSpec) -> tuple[str, ...]:
    """SkyRL's names of all networks."""
    return (*trained(spec), "ref")


def optimizers(spec: RunSpec, key: str, value: Any) -> Keys:
    """The key for each optimizer."""
    return {f"trainer.{role}.optimizer_config.{key}": value for role in trained(spec)}


def sampled(key: str, value: Any) -> Keys:
    """The key for rollouts and evaluation, since one given evaluation key resets all the others."""
    return {
        f"generator.{sampling}.{key}": value
        for sampling in ("sampling_params", "eval_sampling_params")
    }


def megatron(spec: RunSpec, key: str, value: Any) -> Keys:
    """The key for Megatron's networks; nothing under FSDP2."""
    if is_megatron(spec):
        return {f"{place}.{key}": value for place in MEGATRON}
    return {}


def fsdp(spec: RunSpec, of: tuple[str, ...], values: Mapping[str, Any]) -> Keys:
    """The keys for these networks under FSDP2; nothing under Megatron."""
    if is_megatron(spec):
        return {}
    return {
        f"trainer.{role}.fsdp_config.{key}": value for role in of for key, value in values.items()
    }


def not_on_cpu(fix: str) -> str:
    """Returns why the rehearsal refuses a value."""
    return f"not on hardware=cpu; {fix}, or choose hardware with accelerators"
