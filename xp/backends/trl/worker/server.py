"""An engine's server as a child of the stage that needs it: started, waited for, and stopped by its id."""

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

from xp.backends.trl.worker import guarded
from xp.backends.trl.worker.completions import MODEL
from xp.backends.trl.worker.config import VLLMServer
from xp.backends.trl.worker.server_watch import HEALTH, Address, ServerWatch, is_answering
from xp.envs.pythons import path_for
from xp.errors import ExitCode, XpError
from xp.security.loopback import HOST, free_port

STOP_S = 20.0
"""Between TERM and KILL."""
POLL_S = 0.5
ENGINE_PROBE = "/is_sleeping"
"""Answered by vLLM's engine process between two steps (0.22 to 0.31); `/health` by the process in front of it alone."""


class Served(NamedTuple):
    """A server that answers."""

    url: str
    key: str


class Program(NamedTuple):
    """A server that is to be started."""

    name: str
    """Name of the engine, for messages."""
    command: tuple[str, ...]
    """Interpreter, module and arguments; no secret among them."""
    key: str
    """Variable that gets the key."""
    environ: Mapping[str, str]
    """Further variables."""
    probe: str = HEALTH
    """Path that the engine itself answers, while it is used."""


@contextmanager
def running(server: VLLMServer, model: str, devices: str, log: Path, python: str = sys.executable) -> Iterator[Served]:
    """Serve a model with vLLM for as long as the block lasts, to whoever has the key.

    Args:
        server: arguments and deadline.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: where its output goes.
        python: the interpreter that has vLLM; another one gets xp by PYTHONPATH.

    Raises:
        XpError: as `serving` does.
    """
    port = free_port()
    program = vllm(server, model, devices, port, python)
    print(f"vLLM serves {model} on http://{HOST}:{port} (accelerators {devices}); its log is {log}", flush=True)
    with serving(program, port, server.start_timeout_s, server.patience_s, log) as served:
        yield served


def vllm(server: VLLMServer, model: str, devices: str, port: int, python: str = sys.executable) -> Program:
    """A vLLM server; the arguments are those of `running`."""
    command = (
        *(python, "-m", guarded.__name__, "serve", model),
        *("--served-model-name", MODEL, "--host", HOST, "--port", str(port)),
        *("--middleware", f"{guarded.__name__}.{guarded.WithKey.__name__}"),
        *server.arguments,
    )
    # The variable opens the paths by which the trainer's weights come in, and the probe's.
    environ = {"CUDA_VISIBLE_DEVICES": devices, "VLLM_SERVER_DEV_MODE": "1"}
    return Program("vLLM", command, guarded.KEY, environ, ENGINE_PROBE)


@contextmanager
def serving(program: Program, port: int, start_timeout_s: float, patience_s: float, log: Path) -> Iterator[Served]:
    """Run an HTTP server on 127.0.0.1 for as long as the block lasts, with a key that was made for it.

    Args:
        program: what is started.
        port: its own.
        start_timeout_s: seconds from its start to its first answer.
        patience_s: seconds that its health check may stay without an answer afterwards.
        log: where its output goes.

    Raises:
        XpError: (RUNTIME) it did not come up in time; (ENGINE) the block failed because it ended, or hung and was
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
    """A server's process, which leads a group of its own; all of it is ended with the block."""
    python = program.command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            program.command,
            env={
                **os.environ,
                **({} if python == sys.executable else {"PYTHONPATH": path_for(python)}),
                **program.environ,
                program.key: key,
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
    """The first and the following of this stage's accelerators, each as CUDA_VISIBLE_DEVICES takes them."""
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
    """Waits for a server's first answer, or until nobody wants one; raises XpError(RUNTIME) where none comes."""
    end, health = time.monotonic() + timeout_s, address._replace(probe=HEALTH)
    while time.monotonic() < end:
        if process.poll() is not None:
            raise XpError(f"the {name} server ended with {process.returncode}; {tail(log)}", ExitCode.RUNTIME)
        if is_answering(health, 10) or is_over.wait(POLL_S):
            return
    raise XpError(f"the {name} server did not answer within {timeout_s:g} s; {tail(log)}", ExitCode.RUNTIME)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: they are a process group of their own."""
    for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    # Workers that outlived their leader are killed by the second round above.


def tail(log: Path) -> str:
    """The end of a server's log, in one line."""
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return f"the end of {log}: " + " | ".join(lines)
