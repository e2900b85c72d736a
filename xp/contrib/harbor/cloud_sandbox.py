"""A sandbox of Harbor's own (Daytona, Modal, E2B, Runloop, its Docker), in a process that has Harbor's package."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.contrib.harbor.cloud_options import PACKAGE
from xp.contrib.harbor.sandbox import REWARD_BYTES, ContainerSandbox, Ran
from xp.contrib.harbor.task_folder import HarborTask
from xp.contrib.hosted import PackageProcess
from xp.envs.base import EnvFault, ResponseLost
from xp.envs.child_process import Child
from xp.envs.config import EnvConfig
from xp.errors import ExitCode, XpError

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


class SandboxCost:
    """Hours of a process's sandboxes, of every child that had them, and what they have cost.

    Args:
        name: name of the environment.
        cloud: `env.options.cloud`.
    """

    def __init__(self, name: str, cloud: Mapping[str, Any]) -> None:
        self._name = name
        self._cloud = cloud
        self._lock = threading.Lock()
        self._began: dict[int, float] = {}
        self._ended_s = 0.0
        """Seconds of the sandboxes that have ended."""

    def begin(self, number: int) -> None:
        """Counts a sandbox from now on; raises XpError(LIMIT) when the budget is spent."""
        budget = self._cloud["budget"]
        with self._lock:
            hours = self._hours()
            if budget is not None and hours * self._cloud["price"] >= budget:
                raise XpError(
                    f"environment {self._name}: sandboxes have cost {hours * self._cloud['price']:.2f} USD, and"
                    f" env.options.cloud.budget is {budget:g}; set a larger one, and resume",
                    ExitCode.LIMIT,
                )
            self._began[number] = time.monotonic()

    def end(self, number: int) -> None:
        """Stops counting a sandbox; idempotent."""
        with self._lock:
            began = self._began.pop(number, None)
            if began is not None:
                self._ended_s += self._seconds(began)

    def numbers(self) -> list[int]:
        """Numbers of the sandboxes that are counted."""
        with self._lock:
            return list(self._began)

    def text(self) -> str | None:
        """Hours and cost. None means that there is no price, or was no sandbox."""
        with self._lock:
            hours = self._hours()
        if self._cloud["price"] is None or hours == 0:
            return None
        return f"{hours:.2f} hours of sandboxes, {hours * self._cloud['price']:.2f} USD"

    def _hours(self) -> float:
        return (self._ended_s + sum(map(self._seconds, self._began.values()))) / 3600

    def _seconds(self, began: float) -> float:
        """Seconds since then; a sandbox of which nothing was heard ends after its minutes."""
        longest_s: float = 60.0 * self._cloud["max_minutes"]
        return min(time.monotonic() - began, longest_s)


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
        self._cost = SandboxCost(config.name, config.options["cloud"])
        self._lock = threading.Lock()
        self._swept: Child | None = None
        self._next_start = 0.0
        self._is_closed = False

    def open(self, task: HarborTask, setup: str | None = None) -> CloudSandbox:
        """Starts a sandbox of a task's image, with a command that was run in it once.

        Raises:
            EnvFault: the sandbox did not start.
            XpError: (LIMIT) the budget is spent.
        """
        child = self._new_child()
        self._wait_for_start()
        number = self._process.number()
        self._cost.begin(number)
        limits = self._config.limits
        limit_s = limits.create_timeout_s + task.build_timeout_s + GRACE_S
        try:
            child.ask(
                "open", number, (task, setup), limit_s, f"the start of the sandbox of {task.name}"
            )
        except BaseException:
            self._cost.end(number)
            raise
        return CloudSandbox(child, number, self._cost)

    def remove_left(self) -> list[str]:
        """Removes sandboxes of processes of this machine that were killed; names them, and says what else is there."""
        lines: list[str] = self._process.child().ask(
            "sweep", 0, None, SWEEP_S + GRACE_S, "the list of sandboxes"
        )
        return lines

    def close(self) -> None:
        """Ends the child with its sandboxes, and prints what they have cost; idempotent."""
        self._process.close(now=False)
        cost = self._cost.text()
        is_first = not self._is_closed
        self._is_closed = True
        if is_first and cost is not None:
            print(f"xp: {self._config.name}: {cost}", file=sys.stderr, flush=True)

    def _new_child(self) -> Child:
        """The child; a new one removes first what the child before it left."""
        child = self._process.child()
        with self._lock:
            is_new = child is not self._swept
            self._swept = child
            left = self._cost.numbers() if is_new else []
        if not is_new:
            return child
        try:
            self.remove_left()
        except EnvFault as fault:  # The account's key may not list sandboxes.
            print(f"xp: {self._config.name}: {fault}", file=sys.stderr, flush=True)
        else:
            for number in left:
                self._cost.end(number)
        return child

    def _wait_for_start(self) -> None:
        """Waits for this sandbox's turn, since clouds refuse bursts of requests."""
        with self._lock:
            now = time.monotonic()
            interval_s = 1 / self._config.options["cloud"]["starts_per_second"]
            starts_at = max(now, self._next_start)
            self._next_start = starts_at + interval_s
        time.sleep(starts_at - now)


class CloudSandbox(ContainerSandbox):
    """See xp.contrib.harbor.sandbox.CommandSandbox.

    Args:
        child: the process with Harbor's package.
        number: number of the sandbox there.
        cost: what counts its hours.
    """

    def __init__(self, child: Child, number: int, cost: SandboxCost) -> None:
        self._child = child
        self._number = number
        self._cost = cost
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
        self._cost.end(self._number)

    def _copy(self, folder: Path, path: str) -> None:
        self._ask("put", (folder, path), COPY_S + GRACE_S, f"the copy of {folder.name}")

    def _as_root(self, command: str) -> str:
        ran = self.run(command, {}, COPY_S, 2 * REWARD_BYTES, "root")
        if ran.code != 0:
            raise ResponseLost(f"`{command[:60]}` failed in the sandbox: {ran.output[-200:]!r}")
        return ran.output

    def _ask(self, verb: str, request: Any, limit_s: float, what: str) -> Any:
        if self._is_closed:
            raise ResponseLost("the sandbox is closed")
        return self._child.ask(verb, self._number, request, limit_s, what)
