"""A sandbox of Harbor's own (Daytona, Modal, E2B, Runloop, its Docker), in a process that has Harbor's package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.contrib.harbor.cloud_options import PACKAGE
from xp.contrib.harbor.sandbox import REWARD_BYTES, VERIFIER_LOGS, Ran
from xp.contrib.harbor.task_folder import HarborTask
from xp.envs.base import EnvFault, ResponseLost
from xp.envs.child_process import Child
from xp.envs.config import EnvConfig
from xp.envs.hosted import PackageProcess
from xp.errors import XpError

PROGRAM: Final = "xp.contrib.harbor.cloud_host"
GRACE_S: Final = 120.0
"""Seconds beyond a request's deadline in the child, as a request that is later ends the child with all sandboxes."""
COPY_S: Final = 600.0
CLOSE_S: Final = 120.0
SWEEP_S: Final = 300.0
"""Deadlines of requests in the child."""
MODULES: Final = {"runloop": "runloop_api_client", "docker": "harbor"}
"""Sandbox -> module of its client; others are called as their sandbox."""


@dataclass(frozen=True)
class AgentRun:
    """An agent of Harbor's that plays a task in a sandbox."""

    name: str
    options: Mapping[str, Any]
    """Arguments of the agent's class."""
    instruction: str
    model: str
    environ: Mapping[str, str]
    """Variables of the agent, with the endpoint's address and key as OPENAI_BASE_URL and OPENAI_API_KEY."""
    user: str | None
    limit_s: float


class CloudSandboxes:
    """The sandboxes of one process, in a child with Harbor's package.

    Args:
        config: the environment; `python` is the interpreter, see xp.envs.pythons.
        environ: see xp.envs.child_process.
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        kind = str(config.sandbox)
        module = MODULES.get(kind, kind)
        self._process = PackageProcess(PROGRAM, module, PACKAGE, config, environ)
        self._swept: Child | None = None

    def open(self, task: HarborTask, setup: str | None = None) -> CloudSandbox:
        """Starts a sandbox of a task's image, with a command that was run in it once; raises EnvFault and XpError."""
        child = self._process.child()
        if child is not self._swept:
            self._swept = child
            try:
                self.remove_left()
            except EnvFault as fault:  # The account's key may not list sandboxes.
                print(f"xp: {self._config.name}: {fault}", file=sys.stderr, flush=True)
        number = self._process.number()
        limits = self._config.limits
        limit_s = limits.create_timeout_s + task.build_timeout_s + GRACE_S
        child.ask(
            "open", number, (task, setup), limit_s, f"the start of the sandbox of {task.name}"
        )
        return CloudSandbox(child, number)

    def remove_left(self) -> list[str]:
        """Removes sandboxes of processes of this machine that were killed; names them, and says what else is there."""
        lines: list[str] = self._process.child().ask(
            "sweep", 0, None, SWEEP_S + GRACE_S, "the list of sandboxes"
        )
        return lines

    def close(self) -> None:
        self._process.close(now=False)


class CloudSandbox:
    """See xp.contrib.harbor.sandbox.CommandSandbox.

    Args:
        child: the process with Harbor's package.
        number: number of the sandbox there.
    """

    def __init__(self, child: Child, number: int) -> None:
        self._child = child
        self._number = number
        self._is_closed = False

    def run(
        self,
        command: str,
        environ: Mapping[str, str],
        timeout_s: float,
        output_bytes: int,
        user: str | None = None,
    ) -> Ran:
        """See CommandSandbox."""
        request = (command, dict(environ), timeout_s, output_bytes, user)
        ran: Ran = self._ask("run", request, timeout_s + GRACE_S, "the command")
        return ran

    def play(self, run: AgentRun) -> Ran:
        """Plays a task by an agent of Harbor's, until it ends or `stop` is called; raises EnvFault."""
        ran: Ran = self._ask("play", run, run.limit_s + GRACE_S, f"the agent {run.name}")
        return ran

    def stop(self) -> None:
        """Ends the agent that plays; its `play` returns."""
        self._ask("stop", None, GRACE_S, "the end of the agent")

    def put(self, folder: Path, name: str) -> str:
        """See CommandSandbox."""
        self._root(f"rm -rf /{name}; mkdir -p /{name}")
        self._ask("put", (folder, f"/{name}"), COPY_S + GRACE_S, f"the copy of {name}")
        self._root(f"chmod -R a+rX /{name}")
        return f"/{name}"

    def put_tests(self, folder: Path) -> str:
        """See CommandSandbox."""
        self._root(f"rm -rf {VERIFIER_LOGS}; mkdir -p {VERIFIER_LOGS}; chmod 777 {VERIFIER_LOGS}")
        return self.put(folder, "tests")

    def read(self, name: str) -> str | None:
        """See CommandSandbox; the file is read within the sandbox, so that links cannot leave it."""
        path = f"{VERIFIER_LOGS}/{name}"
        there, _, text = self._root(
            f"test -f {path} && echo there && head -c {REWARD_BYTES} {path} || true"
        ).partition("\n")
        return text if there == "there" else None

    def close(self) -> None:
        """See CommandSandbox; a forked process does not close its parent's sandbox."""
        if self._is_closed or not self._child.is_alive():
            return
        self._is_closed = True
        try:
            self._child.ask(
                "close", self._number, None, CLOSE_S + GRACE_S, "the end of the sandbox"
            )
        except (EnvFault, XpError):
            return  # The child says why; the cloud removes it after its time.

    def _root(self, command: str) -> str:
        """Output of a command of root's; raises ResponseLost if it fails."""
        ran = self.run(command, {}, COPY_S, 2 * REWARD_BYTES, "root")
        if ran.code != 0:
            raise ResponseLost(f"`{command[:60]}` failed in the sandbox: {ran.output[-200:]!r}")
        return ran.output

    def _ask(self, verb: str, request: Any, limit_s: float, what: str) -> Any:
        if self._is_closed:
            raise ResponseLost("the sandbox is closed")
        return self._child.ask(verb, self._number, request, limit_s, what)
