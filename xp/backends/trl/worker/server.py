"""A vLLM server as a child of the stage that needs it: started, waited for, and stopped by its id."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from xp.backends.trl.worker import guarded
from xp.backends.trl.worker.completions import MODEL
from xp.backends.trl.worker.config import VLLMServer
from xp.backends.trl.worker.server_watch import ServerWatch, is_healthy
from xp.envs.pythons import path_for
from xp.errors import ExitCode, XpError
from xp.security.loopback import HOST, free_port

STOP_S = 20.0
"""Between TERM and KILL."""
POLL_S = 0.5


class Served(NamedTuple):
    """A server that answers."""

    url: str
    key: str


@contextmanager
def running(server: VLLMServer, model: str, devices: str, log: Path, python: str = sys.executable) -> Iterator[Served]:
    """Serve a model for as long as the block lasts, to whoever has the key.

    Args:
        server: arguments and deadline.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: where its output goes.
        python: the interpreter that has vLLM; another one gets xp by PYTHONPATH.

    Raises:
        XpError: (RUNTIME) it did not come up in time; (ENGINE) the block failed because it ended, or hung and was
            stopped. The message has the end of its log.
    """
    port = free_port()
    key = secrets.token_hex(32)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [
                *(python, "-m", guarded.__name__, "serve", model),
                *("--served-model-name", MODEL, "--host", HOST, "--port", str(port)),
                *("--middleware", f"{guarded.__name__}.{guarded.WithKey.__name__}"),
                *server.arguments,
            ],
            env={
                **os.environ,
                **({} if python == sys.executable else {"PYTHONPATH": path_for(python)}),
                "CUDA_VISIBLE_DEVICES": devices,
                guarded.KEY: key,
                # Where the trainer's weights come in.
                "VLLM_SERVER_DEV_MODE": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://{HOST}:{port}"
        print(f"vLLM serves {model} on {url} (accelerators {devices}); its log is {log}", flush=True)
        _wait(process, url, server.start_timeout_s, log)
        with ServerWatch(process, url, server.patience_s) as watch:
            try:
                yield Served(url, key)
            except (Exception, SystemExit) as error:
                if not (fault := watch.fault()):
                    raise
                raise XpError(f"the vLLM server {fault}; {_tail(log)}", ExitCode.ENGINE) from error
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


def _wait(process: subprocess.Popen[bytes], url: str, timeout_s: float, log: Path) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise XpError(f"the vLLM server ended with {process.returncode}; {_tail(log)}", ExitCode.RUNTIME)
        if is_healthy(url, 10):
            return
        time.sleep(POLL_S)
    raise XpError(f"the vLLM server did not answer within {timeout_s:g} s; {_tail(log)}", ExitCode.RUNTIME)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: they are a process group of their own."""
    for number, patience in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    # Workers that outlived their leader are killed by the second round above.


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-5:]
    return f"the end of {log}: " + " | ".join(lines)
