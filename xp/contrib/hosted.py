"""What the annex's environments share: a provider in another process, which has its package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from xp.envs.base import EnvUnavailable, ResponseLost, Task
from xp.envs.child_process import Child, ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.hosted import PROGRAM, HostedSession
from xp.envs.indexed import IndexedProvider
from xp.envs.pythons import candidates
from xp.errors import ExitCode, XpError

START_S: Final = 300.0
"""Seconds to import the package and make its environments."""


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
