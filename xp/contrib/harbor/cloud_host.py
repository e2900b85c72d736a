"""The process with Harbor's package: starts its sandboxes, runs commands and agents there, and removes what was left."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import itertools
import os
import platform
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.contrib.harbor.cloud_clients import Removal, is_gone, is_late, label, listed
from xp.contrib.harbor.cloud_options import account_variables
from xp.contrib.harbor.cloud_sandbox import CLOSE_S, COPY_S, SWEEP_S, AgentRun
from xp.contrib.harbor.sandbox import Ran
from xp.contrib.harbor.task_folder import HarborTask, folder_digest
from xp.envs.base import DeadlineExceeded, EnvFault, EnvUnavailable, ResponseLost
from xp.envs.config import EnvConfig
from xp.envs.loop import run
from xp.envs.rpc_server import directory_kind, serve, to_stderr
from xp.errors import ExitCode, XpError
from xp.lib.atomic import private_directory
from xp.lib.secrets.redaction import Redactor
from xp.spec.env import SandboxKind

END_S: Final = 4.0
"""Seconds to remove open sandboxes after the parent's end; xp.lib.processes kills this process after five seconds."""
SLACK_S: Final = 30.0
"""Seconds beyond a deadline in which a cancelled request ends; the parent waits longer, as it would end this process."""
KILL_S: Final = 2
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
KILLED: Final = (124, 137)
"""Exit codes of `timeout` for a command that it stopped."""
SETUP: Final = "RUN echo {script} | base64 -d >/tmp/xp-setup.sh && sh -e /tmp/xp-setup.sh\n"
"""Line of a Dockerfile that runs a script; a file of it would be uploaded beside the image."""
LIFETIMES: Final[Mapping[str, tuple[str, int]]] = {
    "daytona": ("ttl_minutes", 1),
    "modal": ("sandbox_timeout_secs", 60),
    "e2b": ("sandbox_timeout_sec", 60),
}
"""Cloud -> Harbor's option of a sandbox's lifetime, and its units in a minute; Runloop's is 24 hours."""
BOUNDED: Final = """output=$(mktemp)
timeout --kill-after {kill_s} {timeout_s:g} bash -c {command} >"$output" 2>&1 </dev/null
code=$?
size=$(wc -c <"$output")
if [ "$size" -le {limit} ]; then cat "$output"; else
  head -c {half} "$output"; printf '\\n[... %s bytes left out ...]\\n' $((size - 2 * {half})); tail -c {half} "$output"
fi
rm -f "$output"
exit $code
"""
"""Shell script that runs a command within its time, and prints the beginning and the end of its output."""


class CloudHost:
    """Sandboxes of one cloud; see xp.envs.rpc_server. All of Harbor's coroutines run on one loop."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._kind = str(config.sandbox)
        self._cloud: Mapping[str, Any] = config.options["cloud"]
        self._directory = private_directory(directory_kind(os.getppid()))
        tempfile.tempdir = os.environ["TMPDIR"] = str(self._directory)
        os.environ.setdefault(
            "LITELLM_LOCAL_MODEL_COST_MAP", "True"
        )  # its client asks GitHub first
        keys = account_variables(config.sandbox)
        self._redact = Redactor([os.environ[name] for name in keys if os.environ.get(name)]).redact
        self._sandboxes: dict[int, Any] = {}
        self._agents: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count()

    def start(self, _: int, module: str) -> str | None:
        """Imports Harbor and a cloud's client; returns the name of a module that this Python lacks, else None."""
        try:
            importlib.import_module(module)
            from harbor.environments.factory import EnvironmentFactory
            from harbor.models.environment_type import EnvironmentType

            EnvironmentFactory.run_preflight(EnvironmentType(self._kind))
        except ModuleNotFoundError as error:
            return error.name or str(error)
        except SystemExit as error:  # Harbor's check of the account's variables
            where = f"environment {self._config.name}: env.sandbox={self._kind}"
            raise XpError(f"{where}: {error}", ExitCode.SECRET) from None
        return None

    def open(self, number: int, request: tuple[HarborTask, str | None]) -> None:
        """Starts a sandbox."""
        task, setup = request
        limit_s = self._config.limits.create_timeout_s + task.build_timeout_s
        self._do(EnvUnavailable, self._open(number, task, setup), limit_s)

    async def _open(self, number: int, task: HarborTask, setup: str | None) -> None:
        sandbox = self._sandbox(task, setup)
        self._sandboxes[number] = sandbox
        try:
            await sandbox.start(force_build=False)
            await label(self._kind, sandbox)
        except BaseException:
            with suppress(Exception):
                await self._remove(number)
            raise
        loop = asyncio.get_running_loop()
        loop.call_later(
            60.0 * self._cloud["max_minutes"], lambda: loop.create_task(self._remove(number))
        )

    def _sandbox(self, task: HarborTask, setup: str | None) -> Any:
        """Harbor's environment of a task; its name is a digest of the image, which is built once."""
        from harbor.environments.factory import EnvironmentFactory
        from harbor.models.environment_type import EnvironmentType
        from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
        from harbor.models.trial.paths import TrialPaths

        context = self._context(task, setup)
        paths = TrialPaths(self._directory / f"trial-{next(self._numbers)}")
        paths.mkdir()
        options: dict[str, Any] = {}
        if self._kind in LIFETIMES:
            name, units = LIFETIMES[self._kind]
            options[name] = units * self._cloud["max_minutes"]
        if self._kind == "daytona":
            options["auto_snapshot"] = True
        if task.has_network:
            mode = NetworkMode.PUBLIC
        else:
            mode = NetworkMode.NO_NETWORK
        cpus = task.cpus
        if cpus is not None and cpus == int(cpus):
            cpus = int(cpus)
        return EnvironmentFactory.create_environment(
            EnvironmentType(self._kind),
            environment_dir=context,
            environment_name=f"xp-{folder_digest(context)[:20]}",
            session_id=f"{owner()}-{next(self._numbers)}",
            trial_paths=paths,
            task_env_config=EnvironmentConfig(
                build_timeout_sec=task.build_timeout_s,
                cpus=cpus,
                memory_mb=task.memory_mb,
                workdir=task.workdir,
            ),
            network_policy=NetworkPolicy(network_mode=mode),
            **{**options, **self._cloud["options"]},
        )

    def _context(self, task: HarborTask, setup: str | None) -> Path:
        """Folder with the Dockerfile of a task's image, and of the program's setup."""
        if task.image is None and setup is None:
            return task.files
        key = hashlib.sha256(f"{task.folder} {task.image} {setup}".encode()).hexdigest()[:20]
        context = self._directory / f"image-{key}"
        if context.is_dir():
            return context
        if task.image is None:
            shutil.copytree(task.files, context)
            lines = (context / "Dockerfile").read_text(encoding="utf-8") + "\n"
        else:
            context.mkdir()
            lines = f"FROM {task.image}\n"
        if setup is not None:
            lines += SETUP.format(script=base64.b64encode(setup.encode()).decode())
        (context / "Dockerfile").write_text(lines, encoding="utf-8")
        return context

    def run(self, number: int, request: tuple[str, dict[str, str], float, int, str | None]) -> Ran:
        """Runs a command; what it prints is cut in the sandbox, so that it does not fill this machine's memory."""
        command, environ, timeout_s, output_bytes, user = request
        half = max(output_bytes // 2, 1)
        script = BOUNDED.format(
            command=shlex.quote(command),
            timeout_s=timeout_s,
            kill_s=KILL_S,
            limit=output_bytes,
            half=half,
        )
        began = time.monotonic()
        sandbox = self._of(number)
        limit_s = int(timeout_s) + 30
        work = sandbox.exec(script, env=environ or None, timeout_sec=limit_s, user=user)
        done = self._do(ResponseLost, work, limit_s)
        text = (done.stdout or "") + (done.stderr or "")
        if done.return_code in KILLED and time.monotonic() - began >= timeout_s:
            return Ran(None, text, f"it took longer than {timeout_s:g} s")
        return Ran(done.return_code, text)

    def put(self, number: int, request: tuple[Path, str]) -> None:
        self._do(ResponseLost, self._of(number).upload_dir(*request), COPY_S)

    def play(self, number: int, request: AgentRun) -> Ran:
        """Plays a task by Harbor's agent; what it says of a failure is the output.

        Raises:
            ResponseLost: the cloud failed, which the agent may take for a failure of its program.
        """
        try:
            self._do(EnvUnavailable, self._play(number, request), request.limit_s)
        except DeadlineExceeded:
            return Ran(None, "", f"it took longer than {request.limit_s:g} s")
        except ResponseLost:
            raise
        except EnvFault as error:
            return Ran(1, str(error))
        return Ran(0, "")

    async def _play(self, number: int, request: AgentRun) -> None:
        playing = asyncio.ensure_future(self._played(number, request))
        self._agents[number] = playing
        try:
            await playing
        except asyncio.CancelledError:
            if not playing.cancelled():
                playing.cancel()
                raise
        finally:
            self._agents.pop(number, None)

    async def _played(self, number: int, request: AgentRun) -> None:
        from harbor.agents.factory import AgentFactory
        from harbor.models.agent.context import AgentContext
        from harbor.models.agent.name import AgentName

        sandbox = self._of(number)
        environ = dict(request.environ)  # A variable of this process would be one for all episodes.
        agent = AgentFactory.create_agent_from_name(
            AgentName(request.name),
            logs_dir=sandbox.trial_paths.agent_dir,
            model_name=f"openai/{request.model}",
            extra_env=environ,
            **request.options,
        )
        with sandbox.with_default_user(request.user), sandbox.scoped_exec_env(environ):
            with kept_faults(sandbox) as faults:
                try:
                    await agent.setup(sandbox)
                    await agent.run(request.instruction, sandbox, AgentContext())
                finally:
                    if faults:
                        raise ResponseLost(f"{self._kind}: {self._told(faults[0])}")

    def stop(self, number: int, _: None) -> None:
        run(self._stop(number), 30.0)

    async def _stop(self, number: int) -> None:
        playing = self._agents.get(number)
        if playing is not None:
            playing.cancel()

    def close(self, number: int, _: None) -> None:
        self._do(ResponseLost, self._remove(number), CLOSE_S)

    async def _remove(self, number: int) -> None:
        """Removes a sandbox; idempotent."""
        sandbox = self._sandboxes.pop(number, None)
        if sandbox is None:
            return
        await self._stop(number)
        try:
            await sandbox.stop(delete=True)
        finally:
            shutil.rmtree(sandbox.trial_paths.trial_dir, ignore_errors=True)

    def sweep(self, _: int, __: None) -> list[str]:
        """Removes sandboxes of this machine whose process has ended; returns a line for each, and for others of xp's."""
        if not SandboxKind(self._kind).is_cloud:
            return []
        return list(self._do(EnvUnavailable, self._sweep(), SWEEP_S))

    async def _sweep(self) -> list[str]:
        lines = []
        num_others = 0
        async for name, remove in listed(self._kind):
            if not name.startswith("xp-"):
                continue
            if not name.startswith(f"xp-{machine()}-"):
                num_others += 1
            elif not is_running(name):
                lines.append(await self._swept(name, remove))
        if num_others:
            lines.append(
                f"{num_others} sandboxes at {self._kind} are of other machines; they end by themselves"
            )
        for line in lines:
            print(f"xp: {line}", file=sys.stderr, flush=True)
        return lines

    async def _swept(self, name: str, remove: Removal) -> str:
        """Removes a sandbox that a killed process left; says what came of it."""
        sandbox = f"the sandbox {name} at {self._kind}, which a killed process left"
        try:
            await remove()
        except Exception as error:
            if is_gone(error):
                return f"another process removed {sandbox}"
            return f"could not remove {sandbox}: {self._told(error)}"
        return f"removed {sandbox}"

    def end(self) -> None:
        """Removes all sandboxes and temporary files."""
        with suppress(Exception):
            run(self._end(), END_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _end(self) -> None:
        await asyncio.gather(*map(self._remove, list(self._sandboxes)), return_exceptions=True)

    def _of(self, number: int) -> Any:
        sandbox = self._sandboxes.get(number)
        if sandbox is None:
            raise ResponseLost(
                f"the sandbox has ended (after {self._cloud['max_minutes']} minutes, env.options.cloud.max_minutes)"
            )
        return sandbox

    def _do(self, fault: type[EnvFault], work: Awaitable[Any], limit_s: float) -> Any:
        """Result of Harbor's coroutine; what it raises is a fault of the environment, without the account's key."""

        async def awaited() -> Any:
            return await asyncio.wait_for(work, limit_s)

        try:
            return run(awaited(), limit_s + SLACK_S)
        except (XpError, EnvFault):
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"{self._kind} took longer than {limit_s:g} s") from None
        except Exception as error:
            raise fault(f"{self._kind}: {self._told(error)}") from None

    def _told(self, error: Exception) -> str:
        """What a cloud's client says, without the account's key."""
        return self._redact(f"{type(error).__name__}: {error}")[:1000]


@contextmanager
def kept_faults(sandbox: Any) -> Iterator[list[Exception]]:
    """What the sandbox's commands raise within the block, without time-outs, which are the command's own."""
    faults: list[Exception] = []
    execute = sandbox.exec

    async def kept(*args: Any, **kwargs: Any) -> Any:
        try:
            return await execute(*args, **kwargs)
        except Exception as error:
            if not is_late(error):
                faults.append(error)
            raise

    sandbox.exec = kept
    try:
        yield faults
    finally:
        del sandbox.exec


@cache
def machine() -> str:
    """Name in labels of this boot, namespace of processes and user, among which `is_running` is right.

    It is random where they cannot be read, so that what others may own is not removed.
    """
    try:
        facts = [Path(BOOT_ID).read_text(), os.readlink("/proc/self/ns/pid")]
        is_own = os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        is_own = False
    if not is_own:  # or /proc is that of another namespace
        facts = [secrets.token_hex()]
    return hashlib.sha256(f"{platform.node()} {os.getuid()} {facts}".encode()).hexdigest()[:10]


def owner() -> str:
    """Name of this process in labels."""
    return f"xp-{machine()}-{os.getpid()}-{_began(os.getpid())}"


def is_running(name: str) -> bool:
    """Returns whether the process of this machine that is named in a label still runs."""
    try:
        pid, began = name.split("-")[2:4]
        return _began(int(pid)) == began
    except PermissionError:  # It is another user's.
        return True
    except (IndexError, ValueError):
        return False


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    to_stderr()
    serve(CloudHost)
