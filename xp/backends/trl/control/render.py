"""RunSpec -> TRL: the stages of a run and their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.backends.trl.control.columns import COLUMNS, PINS, SFT_COLUMNS
from xp.backends.trl.control.constraints import CONSTRAINTS
from xp.backends.trl.control.processes import accelerate_config
from xp.backends.trl.worker.config import TRLSftConfig, TRLTrainConfig
from xp.errors import nearest
from xp.fields import support
from xp.fields.field import Native, Refusal
from xp.fields.shared import is_colocated
from xp.fields.support import FieldSupport
from xp.fields.trl import is_sharded, node_size, world_size
from xp.planning.backend import MemoryUse
from xp.planning.batch import batch_refusals, with_shared
from xp.planning.engine_arguments import READS_PICTURES, vllm_server
from xp.planning.job import Job, Stage
from xp.planning.native_keys import TrainerKeys
from xp.planning.runtime import trainer_runtime
from xp.planning.sft import sft_fields, sft_needs
from xp.planning.stages import (
    cpu_engine,
    cpu_environment,
    model_stages,
    teacher_stages,
    train_and_evaluate,
    train_fields,
    trainer_job,
)
from xp.spec import DType, EngineName, RunSpec
from xp.spec.training import Optimizer
from xp.worker.engines.config import VLLMServer
from xp.worker.places import RunPaths

PACKAGES = ("torch", "transformers", "trl", "openreward")
TABLE = Path(__file__).with_name("overrides.toml")
SFT_CATALOG = "sft_catalog.json"


def grpo_config(spec: RunSpec, places: RunPaths) -> dict[str, Any]:
    """Keyword arguments of trl.GRPOConfig, without the address of a server, which is known when it starts."""
    return (
        support.render(COLUMNS, spec) | {"output_dir": places.checkpoints} | spec.backend.overrides
    )


def memory(spec: RunSpec) -> MemoryUse:
    """See xp.planning.backend.Backend. All states stay; the head is fused with the loss, so that logits are tiles.

    Measured by `make bench ARGS=memory`: 0.04 bytes per logit, and the head's gradient once more in float32.
    """
    casts = (
        spec.model.lora is None and spec.model.dtype is not DType.FLOAT32 and not is_sharded(spec)
    )
    stays = ("weights", "optimizer", "reference", "teacher")
    return MemoryUse(
        stays=stays,
        keeps_engine=True,
        keeps_pixels=True,
        casts=casts,
        # The model without its adapters is the reference.
        has_reference=spec.model.lora is None and not spec.backend.parallel.offload_reference,
        adapts_experts=True,
        logit_bytes=0.0,
        head_bytes=4.0,
        pads=True,
    )


def unauthenticated_endpoints(spec: RunSpec) -> tuple[str, ...]:
    """See xp.planning.backend.Backend; there are none."""
    del spec
    return ()


def render(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """The stages model (for a built model), train with all evaluations, and evaluate in case of a crash."""
    built = (*model_stages(spec, places), *teacher_stages(spec, places))
    return train_and_evaluate(spec, places, built, sft_stage, _train_job(spec, places))


def sft_stage(spec: RunSpec, places: RunPaths) -> Stage:
    """Stage that fine-tunes the model on episodes (xp.planning.sft)."""
    here = places.stage("sft")
    config = TRLSftConfig(
        **_common(spec), **sft_fields(spec, places), arguments=sft_arguments(spec, places)
    )
    job = _job(spec, here, "sft", config.to_json(), (f"{places.sft}/model.safetensors",))
    return Stage("sft", job, needs=sft_needs(spec, places))


SHARED = (
    "report_to", "logging_strategy", "logging_steps", "logging_nan_inf_filter", "disable_tqdm", "eval_strategy",
    "dataloader_num_workers", "ddp_find_unused_parameters", "seed", "data_seed", "bf16", "fp16", "weight_decay",
    "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "save_strategy", "save_total_limit",
    "gradient_checkpointing", "activation_checkpointing", "use_cpu", "optim", "ddp_timeout", "router_aux_loss_coef",
)  # fmt: skip
"""Arguments that a fine-tuning has like the training."""


def sft_arguments(spec: RunSpec, places: RunPaths) -> dict[str, Any]:
    """Keyword arguments of trl.SFTConfig."""
    training = support.render(COLUMNS, spec)
    return {
        **{name: training[name] for name in SHARED if name in training},
        **support.render(SFT_COLUMNS, spec),
        "output_dir": f"{places.sft}_checkpoints",
        "max_length": None,
        "packing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        **spec.sft.overrides,
    }


def checkpoint(spec: RunSpec, places: RunPaths, step: int) -> str:
    """Hugging Face directory of a rollout step's checkpoint (with adapters only, for model.lora)."""
    return f"{places.checkpoints}/checkpoint-{step * spec.training.all_updates_per_step}"


def _train_job(spec: RunSpec, places: RunPaths) -> Job:
    here = places.stage("train")
    engines = spec.backend.engine.accelerators
    server = None
    if engines is not None:
        server = vllm_server(spec, engines, takes_weights=True)
    config = TRLTrainConfig(
        **_common(spec, node_size(spec), server),
        **train_fields(spec, places),
        num_processes=world_size(spec),
        updates_per_rollout=spec.training.all_updates_per_step,
        grpo=grpo_config(spec, places),
    )
    program = "train" if world_size(spec) == 1 and engines is None else "launch"
    outputs = (f"{places.model}/model.safetensors", places.metrics)
    return _job(spec, here, program, config.to_json(), outputs)


def _common(
    spec: RunSpec, num_processes: int = 1, server: VLLMServer | None = None
) -> dict[str, Any]:
    """Fields of a TRLStageConfig that are TRL's."""
    return {
        "threads_per_process": max(1, spec.backend.num_threads // num_processes),
        "server": server,
    }


def _job(spec: RunSpec, here: str, program: str, config: str, outputs: tuple[str, ...]) -> Job:
    files = {"config.json": config}
    if world_size(spec) > 1:
        files["accelerate.yaml"] = accelerate_config(spec)
    module = f"xp.backends.trl.worker.{program}"
    argv = ("python", "-m", module, *(f"{here}/{name}" for name in files))
    engine = spec.backend.engine
    packages = [*PACKAGES]
    if engine.name is EngineName.VLLM:
        packages += ["vllm"]
        if spec.model.images is not None and not is_colocated(spec):
            packages += [READS_PICTURES]
    if spec.model.lora is not None:
        packages += ["peft"]
    if spec.training.optimizer is Optimizer.ADAMW_8BIT:
        packages += ["bitsandbytes"]
    env = {**cpu_environment(spec.backend.num_threads), **cpu_engine(spec)}
    stubs: tuple[str, ...] = ()
    if cpu_engine(spec) and engine.accelerators:
        stubs = ("NCCL's transfer of weights: gloo",)
    runtime = trainer_runtime(spec, packages)
    return trainer_job(spec, here, argv, files, outputs, runtime, env, stubs)


def _written(keys: Native) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())


@cache
def catalog(name: str = "catalog.json") -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig or SFTConfig, from tools.catalogs.trl."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name(name).read_text())["fields"]
    return fields


def class_fault(name: str, known: Mapping[str, Any]) -> Callable[[str, Any], str | None]:
    """Function that returns the fault of a key that a class lacks.

    Args:
        name: name of the class.
        known: its catalog.
    """
    return lambda key, _: (
        None if key in known else f"{name} has no such field{nearest(key, known)}; leave it out"
    )


KEYS = TrainerKeys(
    COLUMNS,
    SFT_COLUMNS,
    PINS,
    TABLE,
    catalog=catalog,
    sft_catalog=lambda: catalog(SFT_CATALOG),
    read=dict,
    write=_written,
    is_shared=lambda key: key in (*SHARED, "output_dir"),
)
"""Keys of GRPOConfig and of SFTConfig."""
native_keys = KEYS.native_keys
sft_keys = KEYS.sft_keys
override_lines = KEYS.override_lines


def check(spec: RunSpec) -> list[Refusal]:
    """See xp.planning.backend.Backend."""
    # The batch shape and the keys have a meaning only for a supported layout.
    return KEYS.field_refusals(spec) or [
        *batch_refusals(spec, with_shared(CONSTRAINTS, spec)),
        *native_keys(spec).refusals(spec.backend.overrides, class_fault("GRPOConfig", catalog())),
        *sft_keys(spec).refusals(
            spec.sft.overrides, class_fault("SFTConfig", catalog(SFT_CATALOG))
        ),
    ]


def meanings(spec: RunSpec) -> Mapping[str, FieldSupport]:
    """See xp.planning.backend.Backend."""
    return KEYS.meanings(spec, check(spec))
