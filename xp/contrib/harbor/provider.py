"""`provider: harbor`: a folder of task folders in Harbor's format."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field

from xp.contrib.harbor.cloud_options import CloudOptions, check_cloud, check_variables
from xp.contrib.harbor.cloud_sandbox import CloudSandboxes
from xp.contrib.harbor.docker_sandbox import DockerImages, DockerSandbox
from xp.contrib.harbor.local_sandbox import ROOT_VARIABLE, LocalSandbox
from xp.contrib.harbor.sandbox import CommandSandbox
from xp.contrib.harbor.session import HarborSession
from xp.contrib.harbor.task_folder import TEST, BrokenTask, HarborTask, read_task, task_folders
from xp.envs.base import EnvUnavailable, Task
from xp.envs.config import EnvConfig
from xp.envs.docker import NO_SANDBOX, check_daemon
from xp.envs.indexed import IndexedProvider
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.facts import fact
from xp.spec.env import SandboxKind

VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
MOST_NAMED: Final = 20


class HarborOptions(BaseModel):
    """`env.options` of `provider: harbor`; conf/env/harbor.yaml has the defaults."""

    command_timeout_s: Annotated[float, Field(gt=0)]
    """Seconds after which a command of the model is killed, with a message to the model."""
    output_bytes: Annotated[int, Field(ge=100, le=1_000_000)]
    """Largest size of a command's output that is shown whole; longer output is shown without its middle."""
    reward: Annotated[str, Field(min_length=1)]
    """Name of the reward, if a verifier writes several to reward.json."""
    cloud: CloudOptions
    """Limits of sandboxes in a cloud."""


class HarborProvider(IndexedProvider):
    """See xp.envs.base.Provider.

    Args:
        config: the environment; `target` is the folder.
        environ: this process's variables; tasks get those in xp.contrib.harbor.local_sandbox and declared secrets.

    Raises:
        XpError: the folder has no tasks, or tasks that xp cannot run (all are named); or no Docker daemon answers.
    """

    Options = HarborOptions

    @staticmethod
    def source_digest(config: EnvConfig) -> str:
        """Digest of the task folders; raises XpError if there are none."""
        return digest_of(
            {
                split: [task.digest() for task in tasks]
                for split, tasks in read_folder(config).items()
            }
        )

    @staticmethod
    def check_plan(config: EnvConfig, environ: Mapping[str, str]) -> None:
        """Checks what a run would check first; raises XpError(SECRET) for a variable that is not declared."""
        tasks = read_folder(config)
        values = variables_of_folder(tasks)
        check_cloud(config, longest_verifier_s(tasks))
        check_variables(config, names_in(values))
        check_declared(values, config, environ)

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._environ = environ
        self._tasks = read_folder(config)
        self._images = DockerImages()
        self._clouds = CloudSandboxes(config, environ)
        self._is_closed = False
        for task in (task for members in self._tasks.values() for task in members):
            # Reports a missing secret before the first session.
            resolved({**task.environ, **task.verifier_environ}, config, environ)
        if config.sandbox is SandboxKind.NONE:
            check_local(config, self._tasks)
            print(f"xp: {NO_SANDBOX}", file=sys.stderr, flush=True)
        elif config.sandbox is SandboxKind.DOCKER:
            check_daemon()

    def version(self) -> str:
        digests = {split: [task.digest() for task in tasks] for split, tasks in self._tasks.items()}
        return f"harbor tasks {digest_of(digests)[:16]}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def open(self, task: Task) -> HarborSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        self._check(task)
        harbor_task = self._tasks[task.split][task.index]
        options = self._config.options
        return HarborSession(
            harbor_task,
            lambda: self._start(harbor_task),
            command_timeout_s=min(options["command_timeout_s"], self._config.limits.call_timeout_s),
            output_bytes=options["output_bytes"],
            reward=options["reward"],
            environ=variables_of(harbor_task, self._config, self._environ),
        )

    def close(self) -> None:
        self._is_closed = True
        self._clouds.close()

    def remove_left(self) -> list[str]:
        """See xp.envs.base.Remover."""
        return remove_left(self._config, self._clouds)

    def _start(self, task: HarborTask) -> CommandSandbox:
        if self._config.sandbox is not None and self._config.sandbox.is_cloud:
            return self._clouds.open(task)
        if self._config.sandbox is SandboxKind.NONE:
            return LocalSandbox(task.files, self._config.limits.memory_gb, self._environ)
        limits = self._config.limits
        return DockerSandbox(self._images.of(task), task, limits.memory_gb, limits.create_timeout_s)

    def _size(self, split: str) -> int:
        return len(self._tasks[split])

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        tasks = (self._tasks[split][index] for index in indices)
        return [
            {"name": task.name, "instruction": task.instruction, "digest": task.digest()}
            for task in tasks
        ]


def variables_of(
    task: HarborTask, config: EnvConfig, environ: Mapping[str, str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Variables of a task's commands, and the further ones of its verifier."""
    return resolved(task.environ, config, environ), resolved(task.verifier_environ, config, environ)


def variables_of_folder(tasks: Mapping[str, Sequence[HarborTask]]) -> list[str]:
    """Values of all variables of these tasks and their verifiers."""
    return [
        value
        for members in tasks.values()
        for task in members
        for value in (*task.environ.values(), *task.verifier_environ.values())
    ]


def longest_verifier_s(tasks: Mapping[str, Sequence[HarborTask]]) -> float:
    """Largest time limit of these tasks' verifiers, in seconds."""
    return max(task.verifier_timeout_s for members in tasks.values() for task in members)


def remove_left(config: EnvConfig, clouds: CloudSandboxes) -> list[str]:
    """Removes sandboxes in a cloud that a killed process of this machine left; returns a line for each."""
    if config.sandbox is None or not config.sandbox.is_cloud:
        return []
    return clouds.remove_left()


def names_in(values: Iterable[str]) -> set[str]:
    """Names of the variables `${NAME}` in these values."""
    return {match[1] for value in values for match in VARIABLE.finditer(value)}


def check_declared(values: Iterable[str], config: EnvConfig, environ: Mapping[str, str]) -> None:
    """Raises XpError(SECRET) for every `${NAME}` without a default, or with a value here, that is not declared."""
    wanted = {match[1]: match[2] for value in values for match in VARIABLE.finditer(value)}
    missing = [
        name
        for name, default in wanted.items()
        if name not in config.secrets and (default is None or environ.get(name))
    ]
    if missing:
        raise XpError("\n".join(_undeclared(config, name) for name in missing), ExitCode.SECRET)


def _undeclared(config: EnvConfig, name: str) -> str:
    return f"environment {config.name}: a task wants the variable {name}: set env.secrets.{name}=null, which declares it"


def resolved(
    variables: Mapping[str, str], config: EnvConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables of a task or a program, with declared secrets for `${NAME}`; no other variable of xp is used.

    Raises:
        XpError: (SECRET) a variable without a default, or with a value here, is not declared.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        default = match[2]
        check_variables(config, [name])
        if name in config.secrets and environ.get(name):
            return environ[name]
        if default is None or environ.get(name):
            raise XpError(_undeclared(config, name), ExitCode.SECRET)
        return str(default)

    return {name: VARIABLE.sub(value, text) for name, text in variables.items()}


@fact
def read_folder(config: EnvConfig) -> dict[str, list[HarborTask]]:
    """Split -> tasks; raises XpError that names every task that cannot be run."""
    tasks: dict[str, list[HarborTask]] = {}
    faults = []
    try:
        for split, folders in task_folders(Path(config.target or "").expanduser()).items():
            for folder in folders:
                try:
                    tasks.setdefault(split, []).append(read_task(folder))
                except BrokenTask as error:
                    faults.append(str(error))
    except BrokenTask as error:
        faults.append(str(error))
    if faults:
        raise _refused(config, faults, "correct them, or move their folders away")
    return tasks


def check_local(config: EnvConfig, tasks: Mapping[str, Sequence[HarborTask]]) -> None:
    """Raises XpError for tasks that need a container: paths outside their directory, or other users."""
    if sys.platform != "linux":
        raise XpError(
            f"environment {config.name}: env.sandbox=none needs Linux; use env.sandbox=docker",
            ExitCode.RUNTIME,
        )
    faults = []
    for task in (task for members in tasks.values() for task in members):
        if ROOT_VARIABLE not in (task.tests / TEST).read_text(encoding="utf-8", errors="replace"):
            faults.append(
                f"task {task.name}: tests/{TEST} does not write its reward below ${{{ROOT_VARIABLE}}}"
            )
        elif task.agent_user or task.verifier_user or task.workdir:
            faults.append(f"task {task.name}: user and workdir of task.toml need a container")
    if faults:
        fix = f"use env.sandbox=docker, or write ${{{ROOT_VARIABLE}}}/logs/verifier/reward.txt (empty in a container)"
        raise _refused(config, faults, fix)


def _refused(config: EnvConfig, faults: Sequence[str], fix: str) -> XpError:
    if len(faults) > MOST_NAMED:
        more = [f"and {len(faults) - MOST_NAMED} more"]
    else:
        more = []
    return XpError("\n".join([f"environment {config.name}:", *faults[:MOST_NAMED], *more, fix]))
