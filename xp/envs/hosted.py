"""A provider in another process, which has its package; faults there do not end the stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from xp.envs.base import (
    EnvFault,
    EnvUnavailable,
    Message,
    ResponseLost,
    SessionLost,
    Task,
    ToolResult,
    ToolSpec,
)
from xp.envs.child_process import Child, ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.indexed import IndexedProvider
from xp.envs.pythons import candidates
from xp.errors import ExitCode, XpError
from xp.spec.env import EnvLimits

PROGRAM: Final = "xp.envs.host"
START_S: Final = 300.0
"""Seconds to import the package and make its environments."""
GRACE_S: Final = 10.0
"""Seconds beyond a call's deadline, which the child applies itself if it can."""


class HostedProvider(IndexedProvider):
    """See xp.envs.base.Provider. Subclasses name the provider in the other process.

    Args:
        config: the environment; `python` is the interpreter, see xp.envs.pythons.
        environ: see xp.envs.child_process.
    """

    hosted: ClassVar[str]
    """`module:Class` of the provider in the child; its splits, sizes and tasks never change."""
    package: ClassVar[str]
    """Requirement that installs its imports."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._host = PackageProcess(PROGRAM, self.hosted, self.package, config, environ)
        self._sizes: dict[str, int] | None = None
        self._is_closed = False

    def version(self) -> str:
        return str(self._ask("version", None))

    def splits(self) -> tuple[str, ...]:
        if self._sizes is None:
            self._sizes = self._ask("sizes", None)
        return tuple(self._sizes)

    def open(self, task: Task) -> HostedSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        self._check(task)
        child = self._host.child()
        number = self._host.number()
        limit_s = self._config.limits.create_timeout_s
        opened = child.ask("open", number, (task.split, task.index), limit_s, f"opening {task.id}")
        return HostedSession(child, number, opened, self._config.limits)

    def close(self) -> None:
        self._is_closed = True
        self._host.close(now=False)

    def _size(self, split: str) -> int:
        assert self._sizes is not None  # `splits` is called first
        return self._sizes[split]

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        return list(self._ask("specs", (split, list(indices))))

    def _ask(self, verb: str, argument: Any) -> Any:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        limit_s = self._config.limits.create_timeout_s
        return self._host.child().ask(verb, 0, argument, limit_s, f"{verb} of {self.package}")


class HostedSession:
    """See xp.envs.base.Session; its other side is in a child process.

    Args:
        child: the process.
        number: number of the conversation there.
        opened: `prompt`, `tools` and `takes_answer`.
        limits: limits of the environment.
    """

    grace_s = GRACE_S

    def __init__(
        self, child: Child, number: int, opened: Mapping[str, Any], limits: EnvLimits
    ) -> None:
        self._child = child
        self._number = number
        self._limits = limits
        self._opening: list[Message] = opened["prompt"]
        self._tools: tuple[ToolSpec, ...] = opened["tools"]
        self.takes_answer: bool = opened["takes_answer"]
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return list(self._opening)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._do("call", (name, dict(arguments)), f"the tool {name}")

    def answer(self, text: str) -> ToolResult:
        return self._do("answer", text, "the answer")

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            limit_s = self._limits.call_timeout_s + self.grace_s
            with suppress(EnvFault, XpError):
                self._child.ask("close", self._number, None, limit_s, "the close")

    def _do(self, verb: str, argument: Any, what: str) -> ToolResult:
        self._check_open()
        limit_s = self._limits.call_timeout_s + self.grace_s
        result: ToolResult = self._child.ask(verb, self._number, argument, limit_s, what)
        return result

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")


class PackageProcess(ChildProcess):
    """A process with the first interpreter that has a package.

    Args:
        program: see ChildProcess; its `start` returns the name of a module that the interpreter lacks, else None.
        hosted: argument of `start`.
        package: requirement that installs its imports.
        config: see ChildProcess.
        environ: see ChildProcess.
    """

    def __init__(
        self,
        program: str,
        hosted: str,
        package: str,
        config: EnvConfig,
        environ: Mapping[str, str],
    ) -> None:
        super().__init__(program, config, environ)
        self._hosted = hosted
        self._package = package

    def _start(self) -> Child:
        tried = {}
        where = f"environment {self._config.name}"
        for python in candidates(self._config.python, self._environ):
            try:
                child = self._start_by(python)
                lacks = child.ask(
                    "start", 0, self._hosted, START_S, f"the start of {self._package}"
                )
            except (OSError, ResponseLost) as error:
                raise XpError(f"{where}: {python}: {error}", ExitCode.RUNTIME) from error
            if lacks is None:
                return child
            child.end("it lacks the package", now=False)
            tried[python] = lacks
        faults = "; ".join(f"{python} has no module {lacks}" for python, lacks in tried.items())
        raise XpError(
            f"{where}: {faults}\n"
            f"make an environment with it: python -m venv DIR && DIR/bin/pip install '{self._package}', and set"
            " env.python=DIR/bin/python (the whole path)",
            ExitCode.RUNTIME,
        )
