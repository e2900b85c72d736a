"""Starts and stops an engine's server as a child process of a stage."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from xp.backends.trl.worker.completions import MODEL
from xp.backends.trl.worker.config import VLLMServer
from xp.backends.trl.worker.server_watch import HEALTH, Address, ServerWatch, is_answering
from xp.engines import key_check
from xp.envs.own_session import kill_session, wait_unreaped
from xp.envs.pythons import path_for
from xp.errors import ExitCode, XpError
from xp.security.loopback import HOST, free_port

STOP_S = 20.0
"""Seconds between TERM and KILL."""
POLL_S = 0.5
ENGINE_PROBE = "/is_sleeping"
"""Path that vLLM's engine process answers between two steps (0.22 to 0.31); `/health` is answered by its HTTP
process."""


class Served(NamedTuple):
    """A running server."""

    url: str
    key: str


class Program(NamedTuple):
    """A server to start."""

    name: str
    """Name of the engine, for messages."""
    command: tuple[str, ...]
    """Interpreter, module and arguments, without secrets."""
    environ: Mapping[str, str]
    """Further variables."""
    probe: str = HEALTH
    """Path that the engine itself answers, for checks during use."""


@contextmanager
def running(server: VLLMServer, model: str, devices: str, log: Path, python: str = sys.executable) -> Iterator[Served]:
    """Context manager: serves a model with vLLM to clients with the key.

    Args:
        server: arguments and deadline.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: file for its output.
        python: the interpreter with vLLM; another one gets xp by PYTHONPATH.

    Raises:
        XpError: as `serving` does.
    """
    port = free_port()
    program = vllm(server, model, devices, port, python)
    print(f"vLLM serves {model} on http://{HOST}:{port} (accelerators {devices}); its log is {log}", flush=True)
    with serving(program, port, server.start_timeout_s, server.patience_s, log) as served:
        yield served


def vllm(server: VLLMServer, model: str, devices: str, port: int, python: str = sys.executable) -> Program:
    """Program of a vLLM server; the arguments are those of `running`."""
    command = (
        *(python, "-m", key_check.__name__, "vllm", "serve", model),
        *("--served-model-name", MODEL, "--host", HOST, "--port", str(port)),
        *("--middleware", f"{key_check.__name__}.{key_check.EngineKeyCheck.__name__}"),
        *server.arguments,
    )
    # The variable enables the paths for the trainer's weights, and the probe's path.
    environ = {"CUDA_VISIBLE_DEVICES": devices, "VLLM_SERVER_DEV_MODE": "1"}
    return Program("vLLM", command, environ, ENGINE_PROBE)


@contextmanager
def serving(program: Program, port: int, start_timeout_s: float, patience_s: float, log: Path) -> Iterator[Served]:
    """Context manager: runs an HTTP server on 127.0.0.1 with a new key.

    Args:
        program: the server's program.
        port: port of the server.
        start_timeout_s: seconds from its start to its first answer.
        patience_s: seconds that its health check may be unanswered afterwards.
        log: file for its output.

    Raises:
        XpError: (RUNTIME) it did not start in time; (ENGINE) the block failed because it ended, or hung and was
            stopped. The message has the end of its log.
    """
    key, is_over = secrets.token_hex(32), threading.Event()
    address = Address(f"http://{HOST}:{port}", key, program.probe)
    with process_of(program, key, log) as process:
        wait_up(process, program.name, address, start_timeout_s, log, is_over)
        with ServerWatch(process, program.name, address, lambda: patience_s) as watch:
            try:
                yield Served(address.url, key)
            except (Exception, SystemExit) as error:
                if not (fault := watch.fault()):
                    raise
                raise XpError(f"the {program.name} server {fault}; {tail(log)}", ExitCode.ENGINE) from error


@contextmanager
def process_of(program: Program, key: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager of a server's process, which leads its own process group; the group ends with the block."""
    python = program.command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            program.command,
            env={
                **os.environ,
                **({} if python == sys.executable else {"PYTHONPATH": path_for(python)}),
                **program.environ,
                key_check.KEY: key,
            },
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def split_devices(num_first: int, num_rest: int) -> tuple[str, str]:
    """The first and the following accelerators of this stage, each as a value of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    names = names or [str(number) for number in range(num_first + num_rest)]
    if len(names) < num_first + num_rest:
        raise XpError(
            f"this stage needs {num_first + num_rest} accelerators and CUDA_VISIBLE_DEVICES={visible} has {len(names)}",
            ExitCode.RUNTIME,
        )
    return ",".join(names[:num_first]), ",".join(names[num_first : num_first + num_rest])


def wait_up(
    process: subprocess.Popen[bytes], name: str, address: Address, timeout_s: float, log: Path, is_over: threading.Event
) -> None:
    """Waits for a server's first answer, or until it is not needed; raises XpError(RUNTIME) if there is none in
    time."""
    end, health = time.monotonic() + timeout_s, address._replace(probe=HEALTH)
    while time.monotonic() < end:
        if process.poll() is not None:
            raise XpError(f"the {name} server ended with {process.returncode}; {tail(log)}", ExitCode.RUNTIME)
        if is_answering(health, 10) or is_over.wait(POLL_S):
            return
    raise XpError(f"the {name} server did not answer within {timeout_s:g} s; {tail(log)}", ExitCode.RUNTIME)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends the server and its workers, which are a process group.

    The leader is reaped last: until then, its id names this group alone. Of a leader that was reaped before, a guard in
    its group ends the workers (xp.envs.bounds).
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        wait_unreaped(process, STOP_S)
        kill_session(process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)


def tail(log: Path) -> str:
    """The end of a server's log, on one line."""
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return f"the end of {log}: " + " | ".join(lines)
