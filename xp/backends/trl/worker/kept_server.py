"""The vLLM server of a training, started again at a new address when it ends or hangs.

With a new address, a client that missed a restart gets no answer, instead of an answer with old weights.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xp.backends.trl.worker.config import VLLMServer
from xp.backends.trl.worker.server import process_of, tail, vllm, wait_up
from xp.backends.trl.worker.server_link import ServerLink, ServerState
from xp.backends.trl.worker.server_watch import Address, ServerWatch, end_stage
from xp.errors import ExitCode, XpError
from xp.security.loopback import HOST, free_port

MAX_RESTARTS = 3
"""Largest number of restarts in one stage; a more frequent fault would end the next engine too."""
TRANSFER_S = 1800.0
"""Seconds that a transfer of weights may take, during which the engine gives no other answers."""


@contextmanager
def kept(
    server: VLLMServer, model: str, devices: str, log: Path, link: ServerLink, max_restarts: int = MAX_RESTARTS
) -> Iterator[str]:
    """Context manager: serves a model with vLLM; yields the secret from which each server's key is derived.

    Args:
        server: arguments and deadlines.
        model: Hugging Face id or directory.
        devices: the server's CUDA_VISIBLE_DEVICES.
        log: file for its output.
        link: informs the training processes about the current server.
        max_restarts: largest number of restarts.

    Raises:
        XpError: (RUNTIME) the first server did not start; (ENGINE) the block failed because no server was left.
    """
    keeper = _Keeper(server, model, devices, log, link, max_restarts)
    thread = threading.Thread(target=keeper.keep, daemon=True)
    thread.start()
    try:
        keeper.is_told.wait()
        if keeper.fault is not None:
            raise keeper.fault
        yield keeper.secret
    except (Exception, SystemExit) as error:
        if keeper.fault is None or keeper.fault is error:
            raise
        raise XpError(str(keeper.fault), ExitCode.ENGINE) from error
    finally:
        keeper.is_over.set()
        thread.join()


class _Keeper:
    """A thread that runs the server as its child process."""

    def __init__(
        self, server: VLLMServer, model: str, devices: str, log: Path, link: ServerLink, max_restarts: int
    ) -> None:
        self._server, self._model, self._devices, self._log, self._link = server, model, devices, log, link
        self._max_restarts = max_restarts
        self.secret = secrets.token_hex(32)
        self.is_told, self.is_over = threading.Event(), threading.Event()
        """Events: the start of the first server has succeeded or failed; the servers are no longer needed."""
        self.fault: XpError | None = None
        """Fault after which there is no server."""

    def keep(self) -> None:
        try:
            for number in range(1, self._max_restarts + 2):
                fault = self._serve(number)
                if not fault:
                    return
                self._tell(number, f"the vLLM server {fault}; {tail(self._log)}")
        except XpError as error:
            self._end(error)
        except Exception as error:
            self._end(XpError(f"the vLLM server could not be started: {error!r}", ExitCode.RUNTIME))

    def _serve(self, number: int) -> str:
        """Runs one server; returns the reason of its loss, empty if it was no longer needed."""
        port = free_port()
        program = vllm(self._server, self._model, self._devices, port)
        url = f"http://{HOST}:{port}"
        address = Address(url, self.secret, program.probe)
        print(
            f"vLLM serves {self._model} on {address.url} (accelerators {self._devices}); its log is {self._log}",
            flush=True,
        )
        with process_of(program, address.key, self._log) as process:
            wait_up(process, program.name, address, self._server.start_timeout_s, self._log, self.is_over)
            self._link.tell(ServerState(number, address.url))
            self.is_told.set()
            with_patience = ServerWatch(process, program.name, address, self._patience_s)
            fault = with_patience.until_lost(self.is_over)
            if fault:
                self._link.tell(ServerState(number, ""))
            return fault

    def _patience_s(self) -> float:
        return TRANSFER_S if self._link.is_transferring() else self._server.patience_s

    def _tell(self, number: int, fault: str) -> None:
        """Warns of a restart; raises XpError(ENGINE) if no restart is left."""
        if number > self._max_restarts:
            raise XpError(f"{fault} (after {self._max_restarts} restarts)", ExitCode.ENGINE)
        print(f"xp: warning: {fault}; restart {number} of {self._max_restarts}", file=sys.stderr, flush=True)

    def _end(self, fault: XpError) -> None:
        self.fault = fault
        self._link.tell(ServerState(0, "", str(fault)))
        is_first = not self.is_told.is_set()
        self.is_told.set()
        if not is_first:
            end_stage(str(fault), self.is_over)
