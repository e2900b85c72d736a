"""Checks versions against pins, accelerators and host against the hardware option, and disk space."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from xp.checks.doctor.finding import Findings, fault, fault_of, ok, unknown
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import checkouts, commit_of, differing, interpreter, probe
from xp.lib.text import counted
from xp.planning.duration import disk_bytes
from xp.planning.job import Stage
from xp.planning.memory.fit import MemoryVerdict, fit, works
from xp.planning.runtime import trainer_runtime
from xp.spec import LauncherName, RunSpec
from xp.spec.hardware import card_named, cards, gpu_cells

GB = 1e9


def versions(spec: RunSpec, stages: Sequence[Stage]) -> Findings:
    """The trainer's Python, and the pinned packages in it; a checkout against its pinned commit."""
    yield from _checkouts(spec)
    runtime = trainer_runtime(spec, ())
    try:
        python = interpreter(runtime)
        _, installed, version = probe(python, (), tuple(spec.backend.pins))
    except XpError as error:
        yield fault_of("python", error)
        return
    yield ok("python", f"{python}, {version}")
    install = next((stage.job.runtime.install for stage in stages if stage.name == "train"), None)
    # A local label (`2.13.0+cpu`) is no difference.
    plain = {package: (there or "").partition("+")[0] for package, there in installed.items()}
    unpinned = {package: pin for package, pin in spec.backend.pins.items() if plain[package] != pin}
    if unpinned and python == sys.executable and install:
        # Do not advise the user to install the trainer into xp's own Python.
        pins = ", ".join(f"{package} {pin}" for package, pin in unpinned.items())
        yield fault("version", f"xp's own Python lacks {pins}; {install}")
        return
    for package, pin in spec.backend.pins.items():
        if package in unpinned:
            there = f"is {installed[package]}" if installed[package] else "is not installed"
            fix = f"{python} -m pip install '{package}=={pin}'"
            yield fault(
                "version", f"{package} {there}; xp's rendering was tested with {pin}; {fix}"
            )
        else:
            yield ok("version", f"{package} {installed[package]}, as pinned")


def _checkouts(spec: RunSpec) -> Findings:
    """Checks that each checkout of the backend is named, exists, and is at its pinned commit."""
    environ = {**os.environ, **checkouts(trainer_runtime(spec, ()))}
    differences = {
        text.partition(":")[0]: text for text in differing(spec.backend.commits, environ)
    }
    for variable, pin in spec.backend.commits.items():
        checkout = environ.get(variable)
        if not checkout:
            yield unknown(
                "checkout",
                f"{variable} is not set; the backend's image has it, elsewhere export it",
            )
        elif not Path(checkout).is_dir():
            yield fault(
                "checkout",
                f"{variable}={checkout} is not a directory; clone it there, at {pin[:9]}",
            )
        elif variable in differences:
            yield fault("checkout", differences[variable])
        elif commit_of(Path(checkout)) is None:
            yield unknown(
                "checkout",
                f"{variable}: {checkout} is not a git checkout: it cannot be compared with {pin[:9]}",
            )
        else:
            yield ok("checkout", f"{variable}: {checkout} is at {pin[:9]}, as pinned")


def accelerators(spec: RunSpec) -> Findings:
    """Kind, number and memory of this machine's GPUs; on a cluster the scheduler finds them."""
    hardware = spec.hardware
    if hardware.accelerator == "cpu":
        return
    if spec.launcher.name is not LauncherName.LOCAL:
        yield unknown(
            "accelerators", f"not checked: launcher={spec.launcher.name} runs on another machine"
        )
        return
    gpus = gpu_cells("name", "memory.total")
    there = [(name, float(size) / 1024) for name, size in gpus if size.isdigit()]
    expected = f"{hardware.accelerators_per_node} x {hardware.accelerator}"
    if len(there) < hardware.accelerators_per_node:
        shown = counted(len(there), "GPU") if there else "no GPU"
        fix = (
            "start it where they are, choose a smaller hardware option, or a launcher that has them"
        )
        yield fault(
            "accelerators", f"the plan needs {expected} and nvidia-smi shows {shown}; {fix}"
        )
        return
    for name, memory_gb in there[: hardware.accelerators_per_node]:
        family = hardware.accelerator.partition("-")[0]
        card = card_named(name, memory_gb) if hardware.accelerator in cards() else None
        if not (family in name.lower() if card is None else card.name.startswith(family)):
            text = f"the plan needs {expected} and this is {name}; choose its hardware option"
            yield fault("accelerators", text)
        elif memory_gb < 0.9 * hardware.accelerator_memory_gb:
            text = f"{name} has {memory_gb:.0f} GB and hardware.accelerator_memory_gb is"
            yield fault(
                "accelerators",
                f"{text} {hardware.accelerator_memory_gb:g}; set it to what there is",
            )
        else:
            yield ok("accelerators", f"{name}, {memory_gb:.0f} GB")


def memory(spec: RunSpec, outputs: Path) -> Findings:
    """The plan's verdict on an accelerator's memory."""
    for work in works(spec):
        result = fit(spec, outputs, work)
        text = f"{work}: {result}"
        if result.verdict is MemoryVerdict.UNLIKELY:
            yield fault("memory", text, ExitCode.PLAN)
        elif result.verdict is not MemoryVerdict.IMPOSSIBLE:  # which the plan refuses
            yield ok("memory", text)


def host(spec: RunSpec) -> Findings:
    """Cores and memory of this machine, where the run is here."""
    if spec.launcher.name is not LauncherName.LOCAL:
        return
    import psutil

    cores = os.cpu_count() or 1
    memory_gb = psutil.virtual_memory().total / GB
    expected = f"hardware={spec.hardware.name} says {spec.hardware.num_cpus} cores and {spec.hardware.memory_gb:g} GB"
    text = f"{cores} cores, {memory_gb:.0f} GB of memory"
    if memory_gb < spec.hardware.memory_gb or cores < spec.hardware.num_cpus:
        yield fault(
            "host", f"{text}, and {expected}; choose another hardware option, or set what there is"
        )
    else:
        yield ok("host", f"{text} ({expected})")


def disk(spec: RunSpec, outputs: Path) -> Findings:
    """Free space against the model, its checkpoints (with Adam's state) and the download."""
    folder = outputs.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    need = disk_bytes(spec)
    if need is None:
        yield unknown(
            "disk",
            f"{free / GB:.0f} GB free at {folder}; the size of a checkpoint of this model.architecture is not known",
        )
        return
    text = f"{free / GB:.0f} GB free at {folder}, and the run writes up to {need / GB:.0f} GB"
    if free < need:
        fix = "make room, set outputs=DIR, or lower training.keep_checkpoints"
        yield fault(
            "disk",
            f"{text} (it keeps {counted(spec.training.keep_checkpoints, 'checkpoint')}); {fix}",
            ExitCode.RESOURCE,
        )
    elif not os.access(folder, os.W_OK):
        yield fault("disk", f"{folder} cannot be written; set outputs=DIR", ExitCode.RESOURCE)
    else:
        yield ok("disk", text)
