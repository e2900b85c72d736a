"""Sends weights to a vLLM server that may have been replaced: the trainer joins the new one, and sends all again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.server_link import ServerLink
from xp.errors import ExitCode, XpError
from xp.security.loopback import free_port


def let_trl_tell(link: ServerLink) -> None:
    """Makes TRL's client record when the engine joins the trainer or receives weights, and gives no other answers.

    It also reads the whole policy if sending fails, since other ranks take part in gathering it.
    """
    from trl.generation import vllm_generation

    base: Any = vllm_generation.VLLMClient

    class TellingClient(base):  # type: ignore[misc]
        def init_communicator(self, *args: Any, **kwargs: Any) -> None:
            with link.transferring():
                super().init_communicator(*args, **kwargs)

        def update_named_params(self, metadata: Any, named_params: Iterator[Any]) -> None:
            try:
                with link.transferring():
                    super().update_named_params(metadata, named_params)
            except Exception:
                for _ in named_params:
                    pass
                raise

    vllm_generation.VLLMClient = TellingClient


class KeptWeights:
    """Replaces `sync_weights` of TRL's VLLMGeneration in mode `server` (TRL 1.16.0).

    All ranks call its methods together.

    Args:
        generation: TRL's object.
        link: information about the current server.
        ranks: the training processes; the first one sends.
    """

    def __init__(self, generation: Any, link: ServerLink, ranks: Ranks) -> None:
        self._generation, self._link, self._ranks = generation, link, ranks
        self._send = generation.sync_weights
        self._start = self._seen = ranks.gather([self._first()])[0][0]
        """Number of the server that this rank sends to, which the first rank has joined."""
        self._num_restarts = 0
        generation.sync_weights = self.sync_weights

    def sync_weights(self) -> None:
        """Updates the server's weights; raises XpError(ENGINE) if there is no server any more."""
        self._send_until_taken(None)

    def restored(self, fault: str) -> bool:
        """Returns whether a rank has lost the server; then a new one has the current weights.

        Args:
            fault: reason why this rank has lost it; empty: it has not.

        Raises:
            XpError: (STAGE_FAILED) the server is running, but did not answer; (ENGINE) there is no server any more.
        """
        faults = [share[0] for share in self._ranks.gather([fault]) if share[0]]
        if faults:
            self._send_until_taken(XpError(faults[0], ExitCode.STAGE_FAILED))
        return bool(faults)

    def restarts(self) -> int:
        """Number of restarts since the last call."""
        number, self._num_restarts = self._num_restarts, 0
        return number

    def _first(self) -> int:
        """Number of the server that TRL itself has joined."""
        state = self._link.state()
        return state.start if state.url == self._generation.server_base_url else state.start - 1

    def _send_until_taken(self, fault: Exception | None) -> None:
        is_taken = False
        while not is_taken:
            self._join_current(fault)
            fault = self._sent()
            is_taken = self._ranks.gather([fault is None])[0][0]

    def _join_current(self, fault: Exception | None) -> None:
        """Joins the current server on the first rank, and passes its address to the others."""
        if self._ranks.is_main:
            state = self._link.state()
            if fault is not None or state.start != self._start or not state.url:
                self._join(fault or XpError("the vLLM server is gone", ExitCode.ENGINE))
        own = (self._start, self._generation.server_base_url)
        start, self._generation.server_base_url = self._ranks.gather([own])[0][0]
        self._num_restarts += start - self._seen
        self._start = self._seen = start

    def _join(self, fault: Exception) -> None:
        while True:
            state = self._link.after(self._start, fault)
            client = self._generation.vllm_client
            self._start, self._generation.server_base_url = state.start, state.url
            client.base_url, client.group_port = state.url, free_port()
            # The old connection has no other end any more.
            client.communicator = None
            try:
                client.init_communicator(device=self._generation.accelerator.device)
            except Exception as error:
                fault = error
            else:
                return

    def _sent(self) -> Exception | None:
        """Sends the weights of all ranks; returns the server's fault on the first rank, else None."""
        if not self._ranks.is_main:
            self._send()
            return None
        try:
            self._send()
        except Exception as error:
            return error
        return None
