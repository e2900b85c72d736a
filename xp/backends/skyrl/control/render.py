"""RunSpec -> SkyRL: the stages of a run and their inputs; the native keys are in xp/fields/."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xp.backends.skyrl.control.columns import COLUMNS, PINS, SFT_COLUMNS
from xp.backends.skyrl.control.constraints import CONSTRAINTS, FSDP2
from xp.backends.skyrl.control.overrides import (
    POLICY,
    TABLE,
    assignment,
    catalog,
    override_refusals,
    sft_catalog,
    sft_overrides,
)
from xp.backends.skyrl.worker.config import (
    HELD_OUT_DATA,
    TRAIN_DATA,
    SkyRLSftConfig,
    SkyRLTrainStageConfig,
)
from xp.fields import support
from xp.fields.field import Native, Refusal
from xp.fields.sft import skyrl_ranks
from xp.fields.shared import has_critic, is_colocated, is_megatron, is_on_cpu
from xp.fields.skyrl import REMOVE_PADDING, can_pack, has_stub, is_packed, workers
from xp.fields.support import FieldSupport
from xp.lib.nested import flat
from xp.lib.packages import IS_CLONE
from xp.lib.private_ray import PRETENDED_GPUS
from xp.planning.backend import MemoryUse
from xp.planning.batch import batch_refusals, with_shared
from xp.planning.job import Job, Stage
from xp.planning.native_keys import TrainerKeys
from xp.planning.runtime import trainer_runtime
from xp.planning.sft import sft_fields, sft_needs
from xp.planning.stages import (
    cpu_engine,
    cpu_environment,
    model_stages,
    starts_private_ray,
    teacher_stages,
    train_and_evaluate,
    train_fields,
    trainer_job,
)
from xp.spec import Attention, RunSpec, Strategy
from xp.worker.places import RunPaths

PACKAGES = ("skyrl", "skyrl_gym", "ray", "torch", "transformers", "openreward")

FLASH_LOGIT_BYTES = 4.0
SDPA_LOGIT_BYTES = 10.0
ENTROPY_BYTES = 14.0
HEAD_BYTES = 4.0
"""Bytes for MemoryUse, measured by `make bench ARGS=memory`."""
ENTROPY_TOKENS = 1024
"""SkyRL's `trainer.logprobs_chunk_size`, tokens of each sequence."""
CRITIC = "trainer.critic."
POLICY_PATH = "trainer.policy.model.path"
CRITIC_PATH = "trainer.critic.model.path"


def _install(spec: RunSpec) -> str | None:
    """Command that installs SkyRL, whose pins differ from those of xp's environments. None means its lock or
    checkout."""
    if is_on_cpu(spec) and not IS_CLONE:
        return "the steps for hardware=cpu: python -m xp install backend=skyrl hardware=cpu"
    if is_on_cpu(spec) and not has_stub(spec):
        return "make .venv-vllm/.done and backend.runtime.python=.venv-vllm/bin/python"
    if is_on_cpu(spec):
        return "make .venv-skyrl/.done and backend.runtime.python=.venv-skyrl/bin/python (make rehearse-skyrl is both)"
    if is_megatron(spec) and spec.backend.runtime.project_env is None:
        return (
            "a checkout of SkyRL's release, in which `uv sync --frozen --extra megatron` makes the Python; then export"
            " SKYRL_PATH=/path/to/SkyRL and backend.runtime.project_env=SKYRL_PATH"
        )
    return None  # its lock, or its checkout


def native(spec: RunSpec) -> dict[str, Any]:
    """All keys of SkyRLTrainConfig that xp sets, without paths, then the user's own keys."""
    return support.render(COLUMNS, spec) | flat(spec.backend.overrides)


def memory(spec: RunSpec) -> MemoryUse:
    """See xp.planning.backend.Backend. Everything is freed for the engine, except an optimizer that stays
    under FSDP.

    Measured by `make bench ARGS=memory` on its FSDP worker: FlashAttention's cross-entropy converts the bfloat16 logits
    to their gradient in place, and the division by the temperature makes a second one; without FlashAttention, SkyRL
    keeps a float32 log-softmax.
    """
    parallel = spec.backend.parallel
    is_moved = (parallel.offload_optimizer and is_colocated(spec)) or parallel.offload_parameters
    moves = ("weights", "optimizer", "reference")
    if parallel.strategy is not Strategy.FSDP2:
        # Adapters stay (megatron_utils.py `offload_megatron_model_to_cpu`).
        stays = ("adapters",) if spec.model.lora is not None else ()
        return MemoryUse(
            stays=stays,
            moves=moves,
            has_reference=not is_colocated(spec),
            pads=not is_packed(spec),
        )
    is_flash = spec.backend.attention is Attention.FLASH
    return MemoryUse(
        has_reference=not parallel.offload_reference,
        moves=moves if is_moved else ("weights", "reference"),
        leaves_optimizers=not is_moved,
        frozen_bytes=4,  # The base of adapters is loaded in float32 too (fsdp_worker.py `init_model`).
        logit_bytes=FLASH_LOGIT_BYTES if is_flash else SDPA_LOGIT_BYTES,
        entropy_tokens=ENTROPY_TOKENS * (1 if is_flash else spec.training.micro_batch_size),
        entropy_bytes=ENTROPY_BYTES,
        head_bytes=HEAD_BYTES,
        pads=not is_packed(spec),
    )


def unauthenticated_endpoints(spec: RunSpec) -> tuple[str, ...]:
    """See xp.planning.backend.Backend: servers of a run on several machines.

    On one machine, engines and router require the key of the run's own Ray.
    """
    if starts_private_ray(spec):
        return ()
    return (
        "vLLM and its router need no key on a cluster's network: anyone who can reach them can run code as you",
    )


def render(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """The stages model (for a built model), train with all evaluations, and evaluate in case of a crash."""
    built = (*model_stages(spec, places), *teacher_stages(spec, places))
    return train_and_evaluate(spec, places, built, sft_stage, _train_job(spec, places))


def sft_stage(spec: RunSpec, places: RunPaths) -> Stage:
    """Stage that fine-tunes the model on episodes with SkyRL's SFTTrainer, without engines."""
    here = places.stage("sft")
    overrides = sft_overrides(spec)
    keys = {
        key: value
        for key, value in support.render(COLUMNS, spec).items()
        if not key.startswith(CRITIC)
    }
    keys |= support.render(SFT_COLUMNS, spec) | {
        key: value for key, value in overrides.items() if key.startswith(POLICY)
    }
    paths = {
        "trainer.ckpt_path": f"{places.sft}_checkpoints",
        "trainer.export_path": f"{here}/exports",
        "trainer.log_path": f"{here}/skyrl",
    }
    config = SkyRLSftConfig(
        **_common(spec, "sft", keys, paths),
        **sft_fields(spec, places),
        arguments={key: value for key, value in overrides.items() if not key.startswith(POLICY)},
    )
    job = _job(
        spec, here, "xp.backends.skyrl.worker.sft", config.to_json(), (f"{places.sft}/config.json",)
    )
    return Stage("sft", job, needs=sft_needs(spec, places))


def checkpoint(spec: RunSpec, places: RunPaths, step: int) -> str:
    """Hugging Face directory of a rollout step's checkpoint."""
    del spec
    return f"{_exports(places)}/global_step_{step}/policy"


def _train_job(spec: RunSpec, places: RunPaths) -> Job:
    here = places.stage("train")
    paths = {
        TRAIN_DATA: f"{here}/train.parquet",
        HELD_OUT_DATA: f"{here}/held_out.parquet",
        "trainer.ckpt_path": places.checkpoints,
        "trainer.export_path": _exports(places),
        "trainer.log_path": f"{here}/skyrl",
    }
    if spec.model.lora is not None:
        paths["trainer.policy.model.lora.lora_sync_path"] = f"{here}/adapters"
    config = SkyRLTrainStageConfig(
        **_common(spec, "train", native(spec), paths),
        **train_fields(spec, places),
        updates_per_rollout=spec.training.all_updates_per_step,
    )
    # A large model's weights are several files, but there is always one config.json.
    outputs = (f"{places.model}/config.json", places.metrics)
    return _job(spec, here, "xp.backends.skyrl.worker.train", config.to_json(), outputs)


def _exports(places: RunPaths) -> str:
    """Directory of SkyRL's Hugging Face models, one per checkpoint."""
    return f"{places.checkpoints}/huggingface"


def _common(
    spec: RunSpec, stage: str, keys: Mapping[str, Any], paths: Mapping[str, str]
) -> dict[str, Any]:
    """Fields of a SkyRLStageConfig that are SkyRL's."""
    model_keys: tuple[str, ...] = (POLICY_PATH, CRITIC_PATH)
    if stage != "train" or not has_critic(spec):
        model_keys = (POLICY_PATH,)
        keys = {**keys, CRITIC_PATH: None}
    num_workers = skyrl_ranks(spec) if stage == "sft" else workers(spec).total
    return {
        "num_workers": num_workers if is_on_cpu(spec) else None,
        "stub": has_stub(spec),
        "native_keys": tuple(assignment(key, value) for key, value in sorted(keys.items())),
        "paths": paths,
        "model_keys": model_keys,
    }


def _job(spec: RunSpec, here: str, module: str, config: str, outputs: tuple[str, ...]) -> Job:
    packages = [*PACKAGES]
    if not has_stub(spec):
        packages += ["vllm"]
    if spec.backend.attention is Attention.FLASH:
        packages += ["flash_attn"]
    argv = ("python", "-m", module, f"{here}/config.json")
    files = {"config.json": config}
    runtime = trainer_runtime(spec, packages, _install(spec))
    env = dict(cpu_engine(spec))
    if is_on_cpu(spec):
        env = {**cpu_environment(spec.backend.num_threads), **env}
        if spec.hardware.num_nodes > 1:
            env[PRETENDED_GPUS] = str(workers(spec).per_node)
    return trainer_job(spec, here, argv, files, outputs, runtime, env, _stubs(spec))


def _stubs(spec: RunSpec) -> tuple[str, ...]:
    if not is_on_cpu(spec):
        return ()
    if has_stub(spec):
        return "vLLM: xp's own engine", "transfer of weights: a file", "CUDA: the CPU", "NCCL: gloo"
    return "CUDA: the CPU", "NCCL and CUDA IPC: gloo"


def _written(keys: Native) -> str:
    return ", ".join(assignment(key, value) for key, value in keys.items())


KEYS = TrainerKeys(
    COLUMNS,
    SFT_COLUMNS,
    PINS,
    TABLE,
    catalog=lambda: catalog()["fields"],
    sft_catalog=sft_catalog,
    read=flat,
    write=_written,
)
"""Keys of SkyRLTrainConfig and of SFTConfig, those of its policy by their names in SkyRLTrainConfig."""
native_keys = KEYS.native_keys
sft_keys = KEYS.sft_keys
override_lines = KEYS.override_lines


def check(spec: RunSpec) -> list[Refusal]:
    """See xp.planning.backend.Backend."""
    # The batch shape and the keys have a meaning only for a supported layout.
    return KEYS.field_refusals(spec) or [
        *batch_refusals(spec, with_shared(CONSTRAINTS, spec, FSDP2)),
        *override_refusals(native_keys(spec), flat(spec.backend.overrides), catalog()["fields"]),
        *override_refusals(sft_keys(spec), sft_overrides(spec), sft_catalog()),
        *_padding_refusals(spec),
    ]


def _padding_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusal of the user's own key where episodes cannot be packed."""
    if flat(spec.backend.overrides).get(REMOVE_PADDING) is True and not can_pack(spec):
        reason = "SkyRL cannot pack this network's episodes with this strategy and attention"
        yield Refusal(
            f"backend.overrides.{REMOVE_PADDING}", f"{reason}; set false, or leave it out"
        )


def meanings(spec: RunSpec) -> Mapping[str, FieldSupport]:
    """See xp.planning.backend.Backend."""
    return KEYS.meanings(spec, check(spec))
