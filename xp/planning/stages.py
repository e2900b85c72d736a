"""RunSpec -> stages: `prepare` and `model`, and what all stages share: needs of their processes, and their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xp.episode.evaluation import RECORD
from xp.fields.shared import is_on_cpu, uses_vllm
from xp.lib.facts import fact
from xp.lib.models.files import pinned_place
from xp.planning.engine_arguments import evaluation_server
from xp.planning.episode import (
    episode_config,
    episode_secrets,
    judge_server,
    needs_catalog_key,
    spec_in_job,
)
from xp.planning.job import Job, Resources, Runtime, Stage
from xp.spec import (
    EngineName,
    LauncherName,
    RunSpec,
    SelectionSpec,
)
from xp.tasks.config import MemberConfig, PrepareConfig, Reader
from xp.tasks.manifest import Manifest, read_manifest
from xp.tasks.profile import Profile, read_profile
from xp.tasks.request import canonical_request, request_key, with_sources
from xp.worker.engines.config import EvaluateConfig
from xp.worker.hub_model import SOURCES
from xp.worker.places import RunPaths, model_place, policy_start, start_place, teacher_place
from xp.worker.stage import AFTER, BEFORE
from xp.worker.tiny_model import MANIFEST, MODELS

QUIET = {
    # No telemetry, no update checks, no unnecessary look-ups on the hub.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}
"""Environment variables of every stage."""
STORE = "tasks"
PREPARE_PACKAGES = ("pyarrow", "filelock")
WITH_EPISODES = ("train", "evaluate")
"""Stages with episodes."""


def starts_private_ray(spec: RunSpec) -> bool:
    """Returns whether a stage on one machine starts its own Ray, closed to other users (xp.lib.private_ray)."""
    is_users = spec.launcher.name is LauncherName.RAY and not spec.launcher.start_head
    return spec.hardware.num_nodes == 1 and not is_users


def cpu_environment(num_threads: int) -> dict[str, str]:
    """Variables that limit the threads of a process on the CPU.

    OpenMP's threads spin while they wait for each other; if other processes use the cores, a step then takes several
    times as long.
    """
    return {"OMP_NUM_THREADS": str(num_threads), "OMP_WAIT_POLICY": "PASSIVE"}


def cpu_engine(spec: RunSpec) -> dict[str, str]:
    """Variables for vLLM on a CPU, with which it needs no compiler and reserves no core."""
    if is_on_cpu(spec) and uses_vllm(spec):
        return {"TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    return {}


def trainer_resources(spec: RunSpec) -> Resources:
    """Resources of the whole hardware option."""
    hardware = spec.hardware
    return Resources(
        accelerator=hardware.accelerator,
        # On a CPU, accelerators_per_node counts processes.
        num_accelerators=0 if is_on_cpu(spec) else hardware.accelerators_per_node,
        num_nodes=hardware.num_nodes,
        num_cpus=hardware.num_cpus,
        memory_gb=hardware.memory_gb,
    )


def host_resources(spec: RunSpec) -> Resources:
    """Resources of a stage without accelerators."""
    hardware = spec.hardware
    return Resources(
        "cpu", 0, 1, num_cpus=min(hardware.num_cpus, 4), memory_gb=min(hardware.memory_gb, 8.0)
    )


def model_stages(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """Stage that copies xp's own model or fetches one from the hub, skipped if it exists; none for any other model."""
    if spec.model.path not in MODELS:
        return _fetched(spec, places, "model", spec.model.path, spec.model.revision)
    return (
        _model_stage(
            spec, places, "model", "xp.worker.tiny_model", {"target": spec.model.path}, MANIFEST
        ),
    )


def teacher_stages(spec: RunSpec, places: RunPaths) -> tuple[Stage, ...]:
    """Stage that fetches a teacher from the hub; none for any other, and for one that is the model itself."""
    distill = spec.algorithm.distill
    if distill is None or teacher_place(distill) == model_place(spec.model):
        return ()
    return _fetched(spec, places, "teacher", distill.teacher, distill.revision)


def _fetched(
    spec: RunSpec, places: RunPaths, name: str, path: str, commit: str | None
) -> tuple[Stage, ...]:
    if commit is None:
        return ()
    config = {"name": path, "commit": commit, "target": pinned_place(path, commit)}
    return (
        _model_stage(spec, places, name, "xp.worker.hub_model", config, SOURCES, "huggingface_hub"),
    )


def _model_stage(
    spec: RunSpec,
    places: RunPaths,
    name: str,
    module: str,
    config: Mapping[str, str],
    last: str,
    *packages: str,
) -> Stage:
    """Stage of a program that leaves a model in the `target` of its config, where it writes the file `last` last."""
    file = f"{places.stage(name)}/config.json"
    target = config["target"]
    job = Job(
        argv=("python", "-m", module, file),
        files={file: json.dumps(config, indent=2) + "\n"},
        outputs=(f"{target}/{last}", f"{target}/config.json"),
        resources=host_resources(spec),
        runtime=Runtime(packages=packages),
        env={**cpu_environment(spec.backend.num_threads), **QUIET},
    )
    return Stage(name, job, needs=("prepare",), done=f"{target}/{last}")


def prepare_config(spec: RunSpec, *, trains: bool = False) -> PrepareConfig:
    """Configuration of the stage's program.

    Args:
        spec: the run.
        trains: whether a training follows, so that a set without training tasks is refused.
    """
    config = replace(_plain_config(spec), trains=trains)
    chosen = {
        name: replace(config.members[name], chosen=_chosen(spec.env.members[name].train, profile))
        for name, profile in profiles(spec).items()
    }
    return replace(config, members={**config.members, **chosen})


@fact
def _plain_config(spec: RunSpec) -> PrepareConfig:
    """The configuration without the selection by profiles."""
    members = {name: MemberConfig(env) for name, env in episode_config(spec).members.items()}
    return with_sources(PrepareConfig(members, spec.preparation, store=STORE))


def _clients(spec: RunSpec) -> set[str]:
    """The client of environments on a server, and the SDK of those of the catalog and of those that xp brings; another
    class may have another SDK."""
    served = [
        member
        for member in spec.env.members.values()
        if member.provider in ("openreward", "openenv")
    ]
    ors = [member for member in served if member.provider == "openreward"]
    has_sdk = any(
        needs_catalog_key(member) or (member.serve or "").startswith("xp.envs.builtin.")
        for member in ors
    )
    return {*(["aiohttp"] if served else ()), *(["openreward"] if has_sdk else ())}


@fact
def profiles(spec: RunSpec) -> dict[str, Profile]:
    """Member -> profile, for environments whose training tasks are selected by one.

    Raises:
        XpError: CONFIG for an evaluation that is missing, unfinished, or of another environment or split.
    """
    if all(member.train.profile is None for member in spec.env.members.values()):
        return {}
    requests = canonical_request(_plain_config(spec))["members"]
    return {
        name: read_profile(
            Path(spec.outputs), member.train.profile, member.train.split[0], requests[name]
        )
        for name, member in spec.env.members.items()
        if member.train.profile is not None
    }


@fact
def task_set_place(spec: RunSpec) -> str:
    """Directory of the canonical task set, known before it exists."""
    return f"{STORE}/{request_key(prepare_config(spec))}"


@fact
def prepared_set(spec: RunSpec, outputs: Path) -> Manifest | None:
    """Manifest of the task set below an outputs root. None means that it is not prepared, or damaged.

    For lines and estimates alone: a plan's stages and refusals are the same before and after the preparation.
    """
    try:
        return read_manifest(outputs / task_set_place(spec))
    except (OSError, ValueError):
        return None


def prepare_stage(
    spec: RunSpec, places: RunPaths, *, needs_training_tasks: bool, trains: bool
) -> Stage:
    """Stage that fetches the tasks; an existing set is only verified, which takes a fraction of a second.

    Args:
        spec: the run.
        places: its places.
        needs_training_tasks: whether a training or a fine-tuning follows, so that a set without such tasks is refused.
        trains: whether a training follows.
    """
    here = places.stage("prepare")
    reader = Reader(start_place(spec), spec_in_job(spec), trains)
    job = Job(
        argv=("python", "-m", "xp.tasks.prepare", f"{here}/config.json", f"{here}/reader.json"),
        files={
            f"{here}/config.json": prepare_config(spec, trains=needs_training_tasks).to_json(),
            f"{here}/reader.json": reader.to_json(),
        },
        outputs=(f"{places.tasks}/manifest.json", f"{places.tasks}/tasks.parquet"),
        resources=host_resources(spec),
        runtime=Runtime(packages=(*PREPARE_PACKAGES, *sorted(_clients(spec)))),
        env=dict(QUIET),
        secrets=episode_secrets(spec),
    )
    return Stage("prepare", job)


def _chosen(train: SelectionSpec, profile: Profile) -> tuple[int, ...]:
    """Positions of the training tasks that a profile selects, in order."""
    return profile.within(train.pass_rate, easy_first=train.easy_first)[: train.num_tasks]


def stage_fields(spec: RunSpec, places: RunPaths, stage: str) -> dict[str, Any]:
    """Fields of an xp.worker.stage.StageConfig."""
    return {"spec": spec_in_job(spec), "places": places, "stage": stage}


def train_fields(spec: RunSpec, places: RunPaths) -> dict[str, Any]:
    """Fields of an xp.worker.stage.TrainConfig."""
    return {**stage_fields(spec, places, "train"), "steps": spec.training.num_steps}


def trainer_job(
    spec: RunSpec,
    here: str,
    argv: tuple[str, ...],
    files: Mapping[str, str],
    outputs: tuple[str, ...],
    runtime: Runtime,
    env: Mapping[str, str],
    stubs: tuple[str, ...] = (),
) -> Job:
    """Job of a program in the trainer's Python, on the whole hardware option; `files` are of the stage's directory."""
    stage = here.rpartition("/")[2]
    secrets = episode_secrets(spec)
    distill = spec.algorithm.distill
    if stage == "train" and distill is not None and distill.key is not None:
        secrets[distill.key] = distill.key
    files = {
        **files,
        "episode.json": episode_config(spec).to_json(),
        "prepare.json": prepare_config(spec).to_json(),
    }
    if spec.served_judge is not None and stage in WITH_EPISODES:
        is_sglang = spec.backend.engine.name is EngineName.SGLANG
        server = judge_server(spec, spec.served_judge, f"{here}/judge.log", is_sglang=is_sglang)
        files = {**files, "judge.json": server.to_json()}
        argv = ("python", "-m", "xp.worker.engines.judge_server", f"{here}/judge.json", *argv[1:])
    return Job(
        argv=argv,
        files={f"{here}/{name}": text for name, text in files.items()},
        outputs=outputs,
        resources=trainer_resources(spec),
        runtime=runtime,
        env={**env, **QUIET},
        secrets=secrets,
        stubs=stubs,
    )


def evaluate_stage(
    spec: RunSpec, places: RunPaths, models: Mapping[str, str], trainer: Job, needs: tuple[str, ...]
) -> Stage:
    """Stage that plays the held-out tasks with models, by an engine of the trainer's own Python on one machine.

    Args:
        models: `before` and `after` -> Hugging Face id or directory.
        trainer: job of the same trainer.
    """
    here = places.stage("evaluate")
    config = EvaluateConfig(
        **stage_fields(spec, places, "evaluate"),
        models=models,
        server=evaluation_server(spec, spec.backend.engine.name),
    )
    argv = ("python", "-m", "xp.worker.engines.evaluate", f"{here}/config.json")
    # Without the module `ray`, a launcher reserves the accelerators, which the program takes as they are.
    runtime = replace(
        trainer.runtime,
        packages=tuple(package for package in trainer.runtime.packages if package != "ray"),
    )
    files = {"config.json": config.to_json()}
    outputs = tuple(f"{here}/{name}/{RECORD}" for name in models)
    job = trainer_job(spec, here, argv, files, outputs, runtime, trainer.env, trainer.stubs)
    return Stage("evaluate", replace(job, resources=replace(job.resources, num_nodes=1)), needs)


def train_and_evaluate(
    spec: RunSpec,
    places: RunPaths,
    earlier: tuple[Stage, ...],
    sft: Callable[[RunSpec, RunPaths], Stage],
    job: Job,
    in_training: Collection[str] = (BEFORE, AFTER),
) -> tuple[Stage, ...]:
    """Stages after the preparation of tasks.

    Args:
        earlier: stages that make the models.
        sft: makes the stage of a fine-tuning, which is before the training if the spec has one.
        job: job of the training.
        in_training: models (`before`, `after`) that the training evaluates on its own engine. It has the evaluation
            stage's config; that stage runs only for what is left.
    """
    if spec.sft.data is not None:
        earlier = (*earlier, sft(spec, places))
    train = Stage("train", job, needs=("prepare", *(stage.name for stage in earlier)))
    if not spec.env.is_held_out:
        return (*earlier, train)
    models = {AFTER: places.model}
    if spec.evaluation.before_training:
        models = {BEFORE: policy_start(spec, places), **models}
    evaluate = evaluate_stage(spec, places, models, job, ("train",))
    config = f"{places.stage('evaluate')}/config.json"
    train = replace(
        train, job=replace(job, files={**job.files, config: evaluate.job.files[config]})
    )
    if models.keys() <= {*in_training}:
        evaluate = replace(evaluate, done=evaluate.job.outputs[-1], made_in="train")
    return (*earlier, train, evaluate)
