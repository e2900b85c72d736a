"""RunSpec -> Slime: the stages of a run and their inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from xp.backends.slime.control.architecture import (
    architecture_flags,
    architecture_refusals,
    family_refusal,
)
from xp.backends.slime.control.columns import COLUMNS, PINS, SFT_COLUMNS
from xp.backends.slime.control.constraints import CONSTRAINTS
from xp.backends.slime.control.flags import (
    OVERRIDES,
    Flags,
    catalog,
    fault,
    flags_of,
    override_flags,
    with_aliases,
    words,
)
from xp.backends.slime.worker import engine_key
from xp.backends.slime.worker.config import (
    HELD_OUT_VIEW,
    ORDER,
    ROLES,
    TASK_VIEW,
    ConvertConfig,
    SlimeCommand,
    SlimeSftConfig,
    SlimeTrainConfig,
)
from xp.fields import support
from xp.fields.architecture import SPARSE
from xp.fields.field import Native, Refusal
from xp.fields.support import FieldSupport
from xp.lib.digest import text_digest
from xp.lib.packages import IS_CLONE
from xp.planning.backend import MemoryUse
from xp.planning.batch import NOT_MEGATRON, batch_refusals, with_shared
from xp.planning.job import Job, Stage
from xp.planning.native_keys import TrainerKeys
from xp.planning.runtime import trainer_runtime
from xp.planning.sft import sft_fields, sft_needs
from xp.planning.stages import (
    model_stages,
    starts_private_ray,
    teacher_stages,
    train_and_evaluate,
    train_fields,
    trainer_job,
)
from xp.spec import Reference, RunSpec
from xp.worker.places import (
    RunPaths,
    model_place,
    policy_start,
    reference_place,
    start_place,
    teacher_place,
)
from xp.worker.stage import AFTER, BEFORE

HELD_OUT = "held_out"
"""Name of the evaluation's data set within Slime."""
PACKAGES = ("ray", "sglang", "torch", "transformers", "openreward")
REHEARSE = "; to play its rollouts on a CPU, run `make rehearse-slime` with checkouts of Slime and Megatron-LM"

ENVIRONMENT = {
    # Megatron needs kernels in the order of their launch to overlap them, and refuses to start without this.
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
DETERMINISTIC = {
    # Megatron's --deterministic-mode refuses to start without these two; cuBLAS needs a workspace of a fixed size.
    "NCCL_ALGO": "Ring",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Variables of `training.deterministic`."""
SPARSE_ATTENTION = {
    # The indexer of GLM-5 rotates neighbouring pairs (scripts/run-glm5-744B-A40B.sh; Slime's patch of SGLang reads it).
    "INDEXER_ROPE_NEOX_STYLE": "0",
}
PATH_FLAGS = (
    "--prompt-data",
    "--eval-prompt-data",
    "--load",
    "--save",
    "--save-hf",
    "--ref-load",
    "--megatron-config-path",
    "--opd-teacher-load",
)
MODEL_FLAGS = ("--hf-checkpoint", "--ref-load")


def train_flags(spec: RunSpec, places: RunPaths) -> Flags:
    """Slime's complete command line for training. None means that the flag is omitted."""
    here = places.stage("train")
    teacher = _teacher(spec)
    return {
        **flags_of(support.render(COLUMNS, spec)),
        "--prompt-data": (f"{here}/{TASK_VIEW}",),
        "--eval-prompt-data": (HELD_OUT, f"{here}/{HELD_OUT_VIEW}")
        if spec.env.is_held_out
        else None,
        # Slime resumes from --load if it has a checkpoint, else starts from --ref-load; the stage's program sets --load
        # to training.initial_checkpoint until the run has its own checkpoint.
        "--load": (places.checkpoints,),
        "--save": (places.checkpoints,),
        "--hf-checkpoint": (spec.backend.engine.quantized_model or policy_start(spec, places),),
        "--ref-load": (_reference(spec, places),),
        "--opd-teacher-load": None if teacher is None else (_converted(spec, teacher),),
        "--save-hf": (f"{_exports(places)}/{{rollout_id}}",),
        "--megatron-config-path": None if spec.algorithm.critic is None else (f"{here}/{ROLES}",),
        **override_flags(spec.backend.overrides),
    }


def memory(spec: RunSpec) -> MemoryUse:
    """See xp.planning.backend.Backend. Without expert parallelism, each expert is split.

    Measured by `make bench ARGS=memory`: its loss has three float32 per logit at the same time.
    """
    distill = spec.algorithm.distill
    return MemoryUse(
        moves=("weights", "gradients", "optimizer"),
        # TensorBackuper's: policy, reference and teacher.
        host_copies=1 + (spec.training.kl_coef > 0) + (distill is not None and distill.url is None),
        has_reference=False,
        splits_experts=spec.backend.parallel.expert == 1,
        copies_linear_attention=True,
        # Without pictures Megatron has the text network alone; the engine has the whole model.
        trains_beside_media=spec.model.images is not None,
        logit_bytes=12.0,
    )


def unauthenticated_endpoints(spec: RunSpec) -> tuple[str, ...]:
    """See xp.planning.backend.Backend: none if SGLang and its router have the key of the run's own Ray."""
    if starts_private_ray(spec) and engine_key.starts_all_servers(
        tuple(override_flags(spec.backend.overrides))
    ):
        return ()
    return (
        "SGLang and its router need no key: whoever reaches them can replace the weights and read the generated text",
    )


def render(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """The stages model (for a hub's model), convert (if configured; a teacher too), train with the evaluations, and
    evaluate for those that are left."""
    stages = model_stages(spec, places)
    needs = ("prepare", *(stage.name for stage in stages))
    if spec.backend.convert_model:
        stages = (*stages, _convert_stage(spec, places, needs))
    teacher = _teacher(spec)
    if teacher not in (None, model_place(spec.model)):
        fetched = teacher_stages(spec, places)
        needs = ("prepare", *(stage.name for stage in fetched))
        stages = (
            *stages,
            *fetched,
            _convert_stage(spec, places, needs, "convert_teacher", teacher),
        )
    # train_async.py does not evaluate before the training.
    in_training = (BEFORE, AFTER) if not spec.training.max_staleness else (AFTER,)
    return train_and_evaluate(
        spec, places, stages, sft_stage, _train_job(spec, places), in_training
    )


def sft_stage(spec: RunSpec, places: RunPaths) -> Stage:
    """Stage that fine-tunes the model on episodes with Slime's loss for it, without engines."""
    here = places.stage("sft")
    checkpoints = f"{places.sft}_checkpoints"
    exports = f"{places.sft}_exports"
    rendered = flags_of(support.render(COLUMNS, spec) | support.render(SFT_COLUMNS, spec))
    flags: Flags = {
        **{name: values for name, values in rendered.items() if not name.startswith("--sglang-")},
        **override_flags(spec.sft.overrides),
        "--prompt-data": (f"{here}/{ORDER}",),
        "--load": (checkpoints,),
        "--save": (checkpoints,),
        "--hf-checkpoint": (start_place(spec),),
        "--ref-load": (start_place(spec),),
        "--save-hf": (f"{exports}/{{rollout_id}}",),
    }
    config = SlimeSftConfig(command=_command(spec, flags), **sft_fields(spec, places))
    outputs = (f"{places.sft}/config.json",)
    job = _job(spec, here, "xp.backends.slime.worker.sft", config.to_json(), outputs)
    return Stage("sft", job, needs=sft_needs(spec, places))


def checkpoint(spec: RunSpec, places: RunPaths, step: int) -> str:
    """Hugging Face directory of a rollout step's checkpoint; Slime counts steps from 0."""
    del spec
    return f"{_exports(places)}/{step - 1}"


def _train_job(spec: RunSpec, places: RunPaths) -> Job:
    here = places.stage("train")
    config = SlimeTrainConfig(
        **train_fields(spec, places), command=_command(spec, train_flags(spec, places))
    )
    outputs = (f"{places.model}/config.json", places.metrics)
    return _job(spec, here, "xp.backends.slime.worker.train", config.to_json(), outputs)


def _teacher(spec: RunSpec) -> str | None:
    """The teacher that Slime loads. None means that there is none, or it is on a server."""
    distill = spec.algorithm.distill
    if distill is None or distill.url is not None:
        return None
    return teacher_place(distill)


def _convert_stage(
    spec: RunSpec,
    places: RunPaths,
    needs: tuple[str, ...],
    name: str = "convert",
    teacher: str | None = None,
) -> Stage:
    """Stage that makes Megatron's checkpoint of the untrained model, or of a teacher with the same network, once for
    all runs of the model and pinned versions."""
    here = places.stage(name)
    output_dir = _converted(spec, teacher)
    model = teacher or model_place(spec.model)
    shape = spec.model.architecture
    assert shape is not None
    config = ConvertConfig(
        command=_command(
            spec,
            {**architecture_flags(shape), "--hf-checkpoint": (model,), "--save": (output_dir,)},
        ),
        num_processes=min(spec.trainer_accelerators, shape.num_layers),
        output_dir=output_dir,
        manifest=_made_of(spec, teacher),
    )
    outputs = (f"{output_dir}/manifest.json",)
    job = _job(spec, here, "xp.backends.slime.worker.convert", config.to_json(), outputs)
    return Stage(name, job, needs=needs, done=f"{output_dir}/manifest.json")


def _reference(spec: RunSpec, places: RunPaths) -> str:
    """Model of the KL penalty, from which the training starts if it has no other start."""
    if spec.backend.convert_model and spec.training.reference is Reference.INITIAL:
        return _converted(spec)
    return reference_place(spec, places)


def _converted(spec: RunSpec, teacher: str | None = None) -> str:
    content = json.dumps(_made_of(spec, teacher), sort_keys=True)
    return f"models/{spec.model.name}-megatron-{text_digest(content)[:16]}"


def _made_of(spec: RunSpec, teacher: str | None) -> dict[str, Any]:
    pins = catalog()
    return {
        "model": teacher or model_place(spec.model),
        "architecture": spec.model.model_dump(mode="json")["architecture"],
        "slime": pins.slime,
        "megatron": pins.megatron,
    }


def _command(spec: RunSpec, flags: Flags) -> SlimeCommand:
    converted = [(_converted(spec),)]
    teacher = _teacher(spec)
    if teacher is not None:
        converted.append((_converted(spec, teacher),))
    environment = dict(ENVIRONMENT)
    if spec.training.deterministic:
        environment |= DETERMINISTIC
    shape = spec.model.architecture
    if shape is not None and shape.model_type == SPARSE:
        environment |= SPARSE_ATTENTION
    of_model = tuple(
        name for name in MODEL_FLAGS if flags.get(name) is not None and flags[name] not in converted
    )
    return SlimeCommand(
        flags=words(flags),
        path_flags=tuple(
            name for name in PATH_FLAGS if flags.get(name) is not None and name not in of_model
        ),
        model_flags=of_model,
        environment=environment,
        slime_path_variable=spec.backend.runtime.project_env or "SLIME_PATH",
    )


def _job(spec: RunSpec, here: str, module: str, config: str, outputs: tuple[str, ...]) -> Job:
    argv = ("python", "-m", module, f"{here}/config.json")
    files = {"config.json": config}
    return trainer_job(spec, here, argv, files, outputs, trainer_runtime(spec, PACKAGES), {})


def _exports(places: RunPaths) -> str:
    return f"{places.run}/exports"


def _written(flags: Native) -> str:
    return " ".join(words(flags_of(flags)))


def _with_owned(rendered: dict[str, str]) -> dict[str, str]:
    # xp uses this flag for the critic; a user's own function needs another algorithm.
    user_function = "algorithm=custom algorithm.advantage_fn=package.module:function"
    return with_aliases(rendered | {"--custom-advantage-function-path": user_function})


KEYS = TrainerKeys(
    COLUMNS,
    SFT_COLUMNS,
    PINS,
    OVERRIDES,
    catalog=lambda: catalog().flags,
    sft_catalog=lambda: catalog().flags,
    read=override_flags,
    write=_written,
    with_owned=_with_owned,
)
"""Flags of the training and of the stage `sft`, each with its other names."""
native_keys = KEYS.native_keys
sft_keys = KEYS.sft_keys
override_lines = KEYS.override_lines


def check(spec: RunSpec) -> list[Refusal]:
    """See xp.planning.backend.Backend."""
    no_gpu = COLUMNS["hardware"].refusal("hardware", spec)
    if no_gpu is not None:
        return [Refusal("hardware", no_gpu + (REHEARSE if IS_CLONE else ""))]
    family = family_refusal(spec)
    if family is not None:
        return [family]
    layout_refusals = [*architecture_refusals(spec), *KEYS.field_refusals(spec)]
    # The batch shape and the flags have a meaning only for a supported layout.
    return layout_refusals or [
        *batch_refusals(spec, with_shared(CONSTRAINTS, spec, NOT_MEGATRON)),
        *native_keys(spec).refusals(override_flags(spec.backend.overrides), fault),
        *sft_keys(spec).refusals(override_flags(spec.sft.overrides), fault),
    ]


def meanings(spec: RunSpec) -> Mapping[str, FieldSupport]:
    """See xp.planning.backend.Backend."""
    return KEYS.meanings(spec, check(spec))
