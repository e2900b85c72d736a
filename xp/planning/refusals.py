"""Refusals by the machine, its cards, and files that are on it; the limits of a launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from xp.envs.docker import NO_SANDBOX
from xp.errors import ExitCode, XpError
from xp.fields.field import Refusal
from xp.fields.message_limits import with_proof
from xp.fields.shared import is_megatron, is_on_cpu, model_config
from xp.lib.data_files import HUB
from xp.lib.models.files import config_of, local_directory, missing_parts
from xp.lib.models.network import mismatches
from xp.lib.models.vocabulary import FILE, read_vocabulary, vocabulary_fault
from xp.lib.models.weights import DEQUANTIZED, quantization_fault, weight_faults
from xp.lib.plugins import CONTRIB, Kind, load
from xp.lib.python_program import answer_of
from xp.planning.episode import episode_config
from xp.planning.job import Job, Stage
from xp.planning.memory.adapters import adapter_fault
from xp.planning.memory.estimate import GIB, capacity_of, judge_bytes
from xp.planning.run_size import member_key
from xp.planning.stages import starts_private_ray
from xp.spec import Attention, BackendName, DType, EngineName, LauncherName, RunSpec
from xp.spec.env import HOSTED, SandboxKind
from xp.spec.hardware import cards
from xp.spec.launcher import LauncherSpec
from xp.spec.sft import SOLVE
from xp.worker.places import model_place, start_place, teacher_place

ELSEWHERE: Final[Mapping[str, str]] = {
    LauncherName.MODAL: "Modal's containers",
    LauncherName.SKYPILOT: "SkyPilot's machines",
    LauncherName.KUBERNETES: "the cluster's pods",
}
"""Launcher whose jobs do not see this machine's disk -> where they run."""
WEIGHTS: Final = "xp.worker.checkpoint_weights"
"""Program that compares a checkpoint's weights with its config.json."""


def machine_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusals by the machine and by files on it."""
    yield from card_refusals(spec)
    yield from sandbox_refusals(spec)
    yield from judge_refusals(spec)
    yield from image_refusals(spec)
    yield from teacher_refusals(spec)
    yield from draft_refusals(spec)


def check_model_files(spec: RunSpec, *, trains: bool = True) -> None:
    """Checks the model's files that are on this machine: a directory, or a snapshot in the cache of the hub's client.

    Args:
        spec: the run.
        trains: False if the model is only played, for which its weights may be quantized.

    Raises:
        XpError: (CONFIG) it has no weights or no tokenizer, so that it can be planned but not loaded; (PLAN) its weights
            are not those that its config.json promises, or the trainer cannot train them.
    """
    is_local = spec.launcher.name is LauncherName.LOCAL
    directory = Path(spec.model.path)
    is_path = directory.is_absolute() and (directory / "config.json").is_file()
    missing = list(missing_parts(directory)) if is_local and is_path else []
    if missing:
        fix = "give a whole Hugging Face directory"
        raise XpError(
            "\n".join(
                f"model.path={directory}: the directory has no {file}; {fix}" for file in missing
            )
        )
    faults = []
    if is_path or spec.model.revision is not None:
        of_model = _model_faults(spec, trains=trains)
        faults += [f"model.path={spec.model.path}: {fault}" for fault in of_model]
    start = spec.training.initial_checkpoint
    if is_local and start is not None and Path(start).is_absolute():
        faults += [
            f"training.initial_checkpoint={start}: {fault}"
            for fault in _weights_faults(spec, Path(start), trains=trains)
        ]
    fault = adapter_fault(spec) if is_local and trains else None
    if fault is not None:
        faults.append(fault)
    if faults:
        raise XpError("\n".join(faults), ExitCode.PLAN)


def _converted(spec: RunSpec) -> Sequence[str]:
    """Quantizations that the trainer converts as it loads the weights."""
    return DEQUANTIZED if spec.backend.name is BackendName.SLIME else ()


def _model_faults(spec: RunSpec, *, trains: bool) -> Iterator[str]:
    """Faults of the model: quantized weights that are to be trained wherever they are, and others where they are on
    this machine."""
    config = model_config(spec)
    fault = None if config is None else quantization_fault(config, _converted(spec))
    if fault is not None and trains:
        yield with_proof(str(spec.backend.name), "model.path", fault)
        return
    directory = local_directory(model_place(spec.model), Path(spec.outputs))
    # A snapshot may lack files, which the stage `model` downloads.
    is_whole = directory is not None and not any(missing_parts(directory))
    if directory is not None and is_whole and spec.launcher.name is LauncherName.LOCAL:
        yield from _weights_faults(spec, directory, trains=trains)


def _weights_faults(spec: RunSpec, directory: Path, *, trains: bool) -> Iterator[str]:
    """What is wrong with the weights of a directory; nothing for one that has adapters alone."""
    config = config_of(str(directory), Path(spec.outputs))
    if config is None or (directory / "adapter_config.json").is_file():
        return
    faults = list(
        weight_faults(directory, config, allows_quantized=not trains, converted=_converted(spec))
    )
    if not faults and quantization_fault(config) is None:
        answer = answer_of(WEIGHTS, directory) or {}
        faults = answer.get("faults", [])
    yield from faults


def card_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses what the cards of the table cannot do (conf/accelerators.yaml)."""
    hardware = spec.hardware
    card = cards().get(hardware.accelerator)
    if hardware.accelerator != "cpu" and not hardware.accelerators_per_node:
        reason = (
            f"0 x {hardware.accelerator} leave nothing to train on; set 1 or more, or hardware=cpu"
        )
        yield Refusal("hardware.accelerators_per_node", reason)
    if card is None:
        return
    older = f"{card.name} is of the architecture {card.architecture}, which has no"
    if spec.model.dtype is DType.BFLOAT16 and not card.bf16:
        yield Refusal(
            "model.dtype",
            f"{older} bfloat16; set model.dtype=float32 (backend=trl), or choose another card",
        )
    if spec.backend.attention is Attention.FLASH and not card.flash:
        yield Refusal("backend.attention", f"{older} FlashAttention 2; set backend.attention=sdpa")
    # vLLM 0.30: FlashInfer's kernels from Ampere on, Triton's from compute capability 8.9, FlashAttention's from 9.0.
    if spec.backend.engine.kv_cache_dtype is not None and not card.bf16:
        yield Refusal("backend.engine.kv_cache_dtype", f"{older} attention over FP8; set null")


def machine_line(spec: RunSpec) -> str:
    """The machine that the run needs, and the defaults that its card does not have."""
    hardware = spec.hardware
    if is_on_cpu(spec):
        return f"the machine: {hardware.num_cpus} cores, {hardware.memory_gb:g} GB, no GPU"
    nodes = f"{hardware.num_nodes} x " if hardware.num_nodes > 1 else ""
    line = (
        f"the machine: {nodes}{hardware.accelerators_per_node} x {hardware.accelerator}"
        f" ({hardware.accelerator_memory_gb:g} GB each), {hardware.num_cpus} cores, {hardware.memory_gb:g} GB"
    )
    card = cards().get(hardware.accelerator)
    if card is None or (card.bf16 and card.flash):
        return line
    lacks = [*(["bfloat16"] * (not card.bf16)), *(["FlashAttention 2"] * (not card.flash))]
    return f"{line}; the card has no {' and no '.join(lacks)}"


def teacher_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses a teacher with another vocabulary than the policy's, where both tokenizers are on this machine, and under
    Megatron one with another network."""
    distill = spec.algorithm.distill
    outputs = Path(spec.outputs)
    if distill is None or distill.url is not None:
        return
    network = spec.model.architecture
    config = config_of(distill.teacher, outputs, distill.revision)
    if is_megatron(spec) and network is not None and config is not None:
        for line in mismatches(network.model_dump(), config):
            reason = f"{line} in {distill.teacher}; Megatron's teacher has the policy's network: use a server (distill.url)"
            yield Refusal("algorithm.distill.teacher", reason)
    yield from _other_vocabulary(
        spec, "algorithm.distill.teacher", distill.teacher, teacher_place(distill)
    )


def draft_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses a draft with another vocabulary than the policy's, where both tokenizers are on this machine."""
    speculative = spec.backend.engine.speculative
    if speculative is not None and speculative.model is not None:
        name = speculative.model
        yield from _other_vocabulary(spec, "backend.engine.speculative.model", name, name)


def _other_vocabulary(spec: RunSpec, field: str, name: str, place: str) -> Iterator[Refusal]:
    models = [
        local_directory(model, Path(spec.outputs), FILE) for model in (start_place(spec), place)
    ]
    policy, other = (
        None if directory is None else read_vocabulary(directory) for directory in models
    )
    if policy and other:
        fault = vocabulary_fault(policy, other)
        if fault is not None:
            yield Refusal(field, f"{name}: {fault}")


def judge_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses a judge that the stages cannot serve."""
    hardware = spec.hardware
    engine = spec.backend.engine.name
    name, judge = next(iter(spec.served_judges.items()), ("", None))
    if judge is None:
        return
    key = f"{member_key(spec, name)}.judge.model"
    fix = "; or start its server yourself, and set serve=null and url"
    if engine is EngineName.TRANSFORMERS or (is_on_cpu(spec) and engine is not EngineName.VLLM):
        here = "vllm and sglang can serve it"
        if is_on_cpu(spec):
            here = "on a CPU xp serves it with vllm alone"
        yield Refusal(f"{key}.serve", f"backend.engine.name={engine} serves no model; {here}{fix}")
    elif not starts_private_ray(spec):
        reason = "the stage must have one machine for itself (hardware.num_nodes=1, and launcher=local or slurm)"
        yield Refusal(f"{key}.serve", f"{reason}{fix}")
    elif not is_on_cpu(spec):
        size = judge.accelerators
        if size >= hardware.accelerators_per_node:
            reason = (
                f"{size} of {hardware.accelerators_per_node} accelerators leave none to train on"
            )
            yield Refusal(
                f"{key}.accelerators", f"{reason}; lower it, or choose a larger hardware option"
            )
        needed = judge_bytes(spec)
        if needed is not None and needed > size * capacity_of(spec):
            weights = f"{judge.serve} has {needed / GIB:.0f} GiB of weights in bfloat16"
            yield Refusal(
                f"{key}.accelerators",
                f"{weights}, more than the memory of {size} x {hardware.accelerator_memory_gb:g} GiB; raise it, or"
                " choose a smaller model",
            )


def image_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses a container without an image, and a file as the image without a container."""
    container = spec.launcher.container
    image = spec.backend.runtime.image
    if container is not None and image is None:
        fix = "name one (backend.runtime.image=/path/image.sif or REGISTRY/NAME:TAG), or set null"
        yield Refusal(
            "launcher.container", f"{container} needs an image, but the backend has none; {fix}"
        )
    if container is None and image is not None and image.startswith("/"):
        fix = "set launcher=slurm launcher.container=apptainer or pyxis, or name an image of a registry"
        yield Refusal(
            "backend.runtime.image", f"{image} is a file, which only batch jobs can use; {fix}"
        )


def sandbox_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses files of this machine that an environment needs and a cloud's machine cannot see. Whether Docker answers
    is checked by the doctor and by the stage."""
    there = ELSEWHERE.get(spec.launcher.name)
    if there is None:
        return
    fix = "set launcher=local, slurm or ray, which run where these files are"
    if spec.sft.data is not None and not spec.sft.data.startswith((SOLVE, HUB)):
        yield Refusal("sft.data", f"the episodes are on this machine and not in {there}; {fix}")
    for name, member in spec.env.members.items():
        key = member_key(spec, name)
        if member.python is not None:
            yield Refusal(
                f"{key}.python", f"{member.python} is on this machine and not in {there}; {fix}"
            )
        elif member.provider in HOSTED:
            reason = f"{member.provider} needs its package, which {there} do not get; {fix}"
            yield Refusal(f"{key}.provider", reason)
        if member.provider in ("harbor", "harness") or (
            member.provider == "inspect" and ".py" in str(member.target)
        ):
            yield Refusal(
                f"{key}.target", f"{member.target} is on this machine and not in {there}; {fix}"
            )


def sandbox_lines(spec: RunSpec) -> list[str]:
    """A warning for a run whose commands are not isolated."""
    if any(member.sandbox is SandboxKind.NONE for member in spec.env.members.values()):
        return [NO_SANDBOX]
    return []


def check_variables(spec: RunSpec) -> None:
    """Raises XpError(SECRET) for variables of the tasks' own files that the spec does not declare."""
    for env in episode_config(spec).members.values():
        if env.provider in CONTRIB[Kind.PROVIDER]:
            provider = load(Kind.PROVIDER, env.provider)
            if hasattr(provider, "check_plan"):
                provider.check_plan(env, os.environ)


def check_limits(spec: LauncherSpec, stages: Sequence[Stage]) -> None:
    """Raises XpError(PLAN) with one sentence for each kind of job that this launcher can never run."""
    module = load(Kind.LAUNCHER, spec.name, needs=("make_launcher", "limit"))
    reasons = dict.fromkeys(module.limit(spec, stage) for stage in stages)
    beyond = [reason for reason in reasons if reason is not None]
    if beyond:
        raise XpError("\n".join(beyond), ExitCode.PLAN)


def launcher_lines(spec: LauncherSpec, stages: Sequence[Stage]) -> list[str]:
    """A warning for each job of a kind that nobody has tried on this launcher."""
    untried = getattr(load(Kind.LAUNCHER, spec.name), "untried", None)
    if untried is None:
        return []
    lines = dict.fromkeys(untried(stage) for stage in stages)
    return [line for line in lines if line is not None]


def needs_one_node(stage: Stage, has: str) -> str | None:
    """The sentence for a job of several nodes on a launcher with one; `has` describes what the launcher provides."""
    num_nodes = stage.job.resources.num_nodes
    if num_nodes == 1:
        return None
    return (
        f"hardware.num_nodes: stage {stage.name} needs {num_nodes} nodes, and {has};"
        " choose a hardware option of one node, or launcher=slurm, ray, kubernetes or skypilot"
    )


def manages_own_gpus(job: Job) -> bool:
    """Returns whether a job's program itself requests its accelerators from Ray."""
    return "ray" in job.runtime.packages
