"""Runs a program of Slime's unchanged, with a Ray cluster, absolute paths on its command line, and xp's own errors."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from xp.backends.slime.worker import processes
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, SlimeCommand, WorkerConfig
from xp.backends.slime.worker.models import local_model
from xp.backends.slime.worker.processes import ask_to_close
from xp.backends.slime.worker.sources import open_sources
from xp.envs import picture_store
from xp.errors import ExitCode, XpError
from xp.lib import loopback, loopback_binding, private_ray
from xp.lib.atomic import write_atomically
from xp.lib.patching import replaced
from xp.lib.secrets.environment import SECRETS_FILE
from xp.worker.best import EarlyStop
from xp.worker.engines.probe import is_lost_process
from xp.worker.slime_names import train_program

XP_ERRORS: Final = (XpError, EarlyStop)
"""Classes of xp's own errors. Ray wraps an actor's exception in a class derived from both, which is none of these."""


def run_train(command: SlimeCommand, worker: WorkerConfig) -> None:
    """Runs Slime's training program to its end, in this process.

    Raises:
        XpError: what a function of xp raised in Slime's processes, with its own exit code; STAGE_FAILED where Slime
            refuses its command line.
        EarlyStop: training ended as `evaluation.patience` says.
    """
    slime = open_sources(command)
    flags = absolute_flags(command, Path(worker.root))
    if not os.environ.get("RAY_ADDRESS"):
        flags += ["--router-prometheus-host", loopback.HOST]
    os.environ.update(command.environment)
    arguments = write_worker(worker)
    program = train_program(worker.spec.training.max_staleness if worker.stage == "train" else 0)
    with _ray(command):
        try:
            run_file(slime / program, [*flags, "--custom-config-path", str(arguments)])
        except BaseException:
            ask_to_close(arguments.parent)
            raise


def run_file(program: Path, flags: Sequence[str]) -> None:
    """Runs a Python program as `python <program> <flags>` would, in this process."""
    try:
        with replaced(sys, argv=[str(program), *flags]):
            runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise XpError(
                f"{program.name} ended with {end.code}; the reason is above", ExitCode.STAGE_FAILED
            ) from None
    except Exception as error:
        fault = fault_behind(error)
        if fault is None:
            raise
        raise type(fault)(str(fault), fault.code) from error


def absolute_flags(command: SlimeCommand, root: Path) -> list[str]:
    """The command line with absolute paths of this machine: Ray's processes have another working directory."""
    flags = []
    for flag, *values in _groups(command.flags):
        if values and flag in command.model_flags:
            values[-1] = str(local_model(values[-1], root))
        elif values and flag in command.path_flags:
            values[-1] = str((root / values[-1]).absolute())
        flags += [flag, *values]
    return flags


def _groups(flags: Sequence[str]) -> Iterator[list[str]]:
    """Each flag with its values."""
    group: list[str] = []
    for word in flags:
        if word.startswith("--") and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def write_worker(worker: WorkerConfig) -> Path:
    """Writes the file for --custom-config-path, as JSON, which Slime reads as YAML."""
    folder = Path(worker.root, worker.stage_dir, "slime", worker.stage)
    write_atomically(folder / "worker.json", worker.to_json())
    write_atomically(
        folder / "arguments.yaml",
        json.dumps({WORKER_ATTRIBUTE: str(folder / "worker.json")}) + "\n",
    )
    return folder / "arguments.yaml"


@contextmanager
def _ray(command: SlimeCommand) -> Iterator[None]:
    """Context with a Ray cluster of this stage's own, or the one that RAY_ADDRESS names (set in a submitted job).

    The own cluster's processes inherit this process's environment, secrets included, and no record of Ray's holds it;
    it is closed to other users (xp.lib.private_ray).
    An existing cluster gets only variables that are not secrets, and the name of the file that holds the secrets.
    """
    if not os.environ.get("RAY_ADDRESS"):
        private_ray.close_to_others()
    setup = processes.setup(command.flags)
    if loopback_binding.ONE_MACHINE in os.environ:
        setup()
    hook = {"worker_process_setup_hook": f"{setup.__module__}.{setup.__name__}"}
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    handler = signal.getsignal(signal.SIGTERM)
    if os.environ.get("RAY_ADDRESS"):
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        names = ("PYTHONPATH", SECRETS_FILE, picture_store.VARIABLE)
        variables = {name: os.environ[name] for name in names if os.environ.get(name)}
        ray.init(runtime_env={**hook, "env_vars": {**command.environment, **variables}})
    else:
        private_ray.start(runtime_env=hook)
    signal.signal(signal.SIGTERM, handler)  # Ray's own ends its processes at once.
    try:
        yield
    finally:
        ray.shutdown()


def fault_behind(error: BaseException) -> XpError | None:
    """The XpError that an actor raised, which Ray wraps; XpError(ENGINE) if an engine did not answer, or one of Ray's
    processes has ended.

    Slime calls only its engines by the package `requests`, and waits for nothing else with a deadline.
    """
    import requests

    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        cause = getattr(error, "cause", None)
        error = cause if isinstance(cause, BaseException) else error.__cause__  # type: ignore[assignment]
    for raised in causes:
        if isinstance(raised, XpError) and type(raised) in XP_ERRORS:
            return raised
    for raised in reversed(causes):
        is_silent = isinstance(raised, requests.RequestException | TimeoutError)
        if is_silent or is_lost_process(raised):
            what = "an engine did not answer" if is_silent else "a process of Slime's has ended"
            return XpError(f"{what}: {raised}; SGLang's output is in this log", ExitCode.ENGINE)
    return None
