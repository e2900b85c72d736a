"""An engine's server as a child process of a stage: started, watched, and ended with the stage.

A server that dies or hangs is not restarted: the stage ends with ExitCode.ENGINE, and resumes from its last checkpoint.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from xp.envs.pythons import path_for
from xp.errors import ExitCode, XpError
from xp.lib import processes
from xp.lib.loopback import HOST, free_port
from xp.worker.adapters import adapters_of, base_of, rank_in_engine
from xp.worker.engines import key_check
from xp.worker.engines.completions import MODEL
from xp.worker.engines.config import VLLMServer
from xp.worker.engines.probe import PROBE_S, VLLM_PROBE, is_answering, tail

START_POLL_S = 0.5
POLL_S = 1.0
SETTLE_S = 5.0
"""Seconds from a client's failure to the end of the server that caused it."""
LEAVE_S = 120.0
"""Seconds from the loss of a server to the forced end of its stage; TRL's client and a broadcast of weights have no
deadline of their own."""
HEALTH = "/health"
URL = "XP_TRL_SERVER"
"""Variable with the URL of the server of a training; its key is in key_check.KEY."""


class RunningServer(NamedTuple):
    """A running server."""

    url: str
    key: str


class Program(NamedTuple):
    """A server to start."""

    name: str
    """Name of the engine, for messages."""
    model: str
    """Hugging Face id or directory, for messages."""
    command: tuple[str, ...]
    """Interpreter, module and arguments, without secrets."""
    environ: Mapping[str, str]
    """Further variables, with its CUDA_VISIBLE_DEVICES."""
    probe: str = HEALTH
    """Path that the engine itself answers, for checks during use."""


def running(
    server: VLLMServer,
    model: str,
    devices: str,
    log: Path,
    python: str = sys.executable,
    name: str = MODEL,
) -> AbstractContextManager[RunningServer]:
    """Context manager: serves a model with vLLM to clients with the key.

    Args:
        server: arguments and deadlines.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: file for its output.
        python: the interpreter with vLLM; another one gets xp by PYTHONPATH.
        name: name of the model in requests.

    Raises:
        XpError: as `serving` does.
    """
    port = free_port()
    command = (
        *(python, "-m", key_check.__name__, "vllm", "serve", model),
        *("--served-model-name", name, "--host", HOST, "--port", str(port)),
        *("--middleware", f"{key_check.__name__}.{key_check.EngineKeyCheck.__name__}"),
        *server.arguments,
    )
    # The variable enables the paths for the trainer's weights, and the probe's path.
    environ = {"CUDA_VISIBLE_DEVICES": devices, "VLLM_SERVER_DEV_MODE": "1"}
    program = Program("vLLM", model, command, environ, VLLM_PROBE)
    return serving(program, port, server.start_timeout_s, server.deadline_s, log)


def with_adapters(server: VLLMServer, model: str) -> tuple[VLLMServer, str, str]:
    """Server, model and name for `running`, so that MODEL is the base with its adapters, and not their rounded sum.

    Args:
        server: arguments and deadlines.
        model: Hugging Face id or directory, with or without adapters.
    """
    adapters = adapters_of(model)
    if adapters is None:
        return server, model, MODEL
    rank = str(rank_in_engine(adapters))
    lora = ("--enable-lora", "--max-lora-rank", rank, "--lora-modules", f"{MODEL}={adapters}")
    return replace(server, arguments=(*server.arguments, *lora)), base_of(adapters), "base"


@contextmanager
def serving(
    program: Program, port: int, start_timeout_s: float, deadline_s: float, log: Path
) -> Iterator[RunningServer]:
    """Context manager: runs an HTTP server on 127.0.0.1 with a new key, and watches it.

    Args:
        program: the server's program.
        port: port of the server.
        start_timeout_s: seconds from its start to its first answer.
        deadline_s: seconds that its probe may be unanswered afterwards; then the server is killed.
        log: file for its output.

    Raises:
        XpError: (RUNTIME) it did not start in time; (ENGINE) the block failed because it ended, or hung and was
            killed. The message has the end of its log.
    """
    served = RunningServer(f"http://{HOST}:{port}", secrets.token_hex(32))
    devices = program.environ["CUDA_VISIBLE_DEVICES"]
    print(
        f"{program.name} serves {program.model} on {served.url} (accelerators {devices}); its log is {log}",
        flush=True,
    )
    with _process(program, served.key, log) as process:
        server = _Server(program, process, served, log)
        server.wait_up(start_timeout_s)
        watch = threading.Thread(target=server.watch, args=(deadline_s,), daemon=True)
        watch.start()
        try:
            yield served
        except (Exception, SystemExit) as error:
            with suppress(subprocess.TimeoutExpired):
                process.wait(SETTLE_S)
            if not server.fault():
                raise
            raise server.error(server.fault(), ExitCode.ENGINE) from error
        finally:
            server.is_over.set()


class _Server:
    """A server's process.

    A block that does not end soon after the loss of its server is ended with its own process, by ExitCode.ENGINE.
    """

    def __init__(
        self,
        program: Program,
        process: subprocess.Popen[bytes],
        served: RunningServer,
        log: Path,
    ) -> None:
        self._program = program
        self._process = process
        self._served = served
        self._log = log
        self._hang = ""
        self.is_over = threading.Event()
        """Set at the end of the block."""

    def fault(self) -> str:
        """Text of the loss; empty while the server runs."""
        code = self._process.poll()
        return self._hang or ("" if code is None else f"ended with {code}")

    def error(self, fault: str, code: ExitCode) -> XpError:
        """The fault and the end of the server's log."""
        return XpError(f"the {self._program.name} server {fault}; {tail(self._log)}", code)

    def wait_up(self, timeout_s: float) -> None:
        """Waits for the first answer; raises XpError(RUNTIME) if there is none in time."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not self.fault():
            if is_answering(self._served.url + HEALTH, self._served.key):
                return
            time.sleep(START_POLL_S)
        fault = self.fault() or f"did not answer within {timeout_s:g} s"
        raise self.error(fault, ExitCode.RUNTIME)

    def watch(self, deadline_s: float) -> None:
        """Kills the server if it hangs, so that its clients fail at once."""
        url = self._served.url + self._program.probe
        answered = time.monotonic()
        while not self.fault():
            if self.is_over.wait(POLL_S):
                return
            if is_answering(url, self._served.key, min(PROBE_S, deadline_s)):
                answered = time.monotonic()
            elif self._process.poll() is None and time.monotonic() - answered > deadline_s:
                self._hang = f"did not answer for {deadline_s:g} s and was killed"
                processes.ask(self._process, now=True)
        if not self.is_over.wait(LEAVE_S):
            error = self.error(self.fault(), ExitCode.ENGINE)
            print(f"xp: {error}", file=sys.stderr, flush=True)
            os._exit(ExitCode.ENGINE)


@contextmanager
def _process(program: Program, key: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager of a server's guard; all processes of the server end with the block."""
    python = program.command[0]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = processes.start(
            program.command,
            env={
                **os.environ,
                **({} if python == sys.executable else {"PYTHONPATH": path_for(python)}),
                **program.environ,
                key_check.KEY: key,
            },
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        processes.end(process)


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
