"""Weights for a server that was started again: joined first, sent whole, and only as often as there are servers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xp.backends.trl.worker import server_link
from xp.backends.trl.worker.kept_weights import KeptWeights, let_trl_tell
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.server_link import ServerLink, ServerState
from xp.errors import ExitCode, XpError


class Server:
    """TRL's generation and client, and the servers that they meet."""

    def __init__(self, directory: Path) -> None:
        self.link = ServerLink(directory)
        self.link.tell(ServerState(1, "http://one"))
        self.joined: list[str] = []
        self.sent: list[str] = []
        self.dies_in_transfers = 0
        self.client = SimpleNamespace(base_url="http://one", group_port=1, communicator="old")
        self.client.init_communicator = self._join
        self.generation: Any = SimpleNamespace(
            server_base_url="http://one",
            vllm_client=self.client,
            sync_weights=self._send,
            accelerator=SimpleNamespace(device="cpu"),
        )
        self.weights = KeptWeights(self.generation, self.link, Ranks())

    def dies(self) -> None:
        number = self.link.state().start
        self.link.tell(ServerState(number + 1, f"http://{number + 1}"))

    def _join(self, device: str) -> None:
        assert device == "cpu"
        assert self.client.communicator is None
        self.joined.append(self.client.base_url)

    def _send(self) -> None:
        if self.dies_in_transfers:
            self.dies_in_transfers -= 1
            self.dies()
            raise ConnectionError("refused")
        self.sent.append(self.client.base_url)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_weights_go_to_the_server_that_is_there(server: Server) -> None:
    server.generation.sync_weights()
    assert (server.joined, server.sent, server.weights.restarts()) == ([], ["http://one"], 0)
    server.dies()
    server.generation.sync_weights()
    assert (server.joined, server.sent) == (["http://2"], ["http://one", "http://2"])
    assert server.generation.server_base_url == "http://2"
    assert (server.weights.restarts(), server.weights.restarts()) == (1, 0)


def test_a_transfer_in_which_the_server_dies_is_made_again(server: Server) -> None:
    server.dies_in_transfers = 2
    server.generation.sync_weights()
    assert (server.joined, server.sent) == (["http://2", "http://3"], ["http://3"])
    assert server.weights.restarts() == 2


def test_a_rollout_that_lost_nothing_sends_nothing_and_one_that_did_goes_on_with_the_next(server: Server) -> None:
    assert not server.weights.restored("")
    server.dies()
    assert server.weights.restored("connection refused")
    assert server.sent == ["http://2"]


def test_a_fault_that_is_not_the_servers_end_stays_the_fault(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_link, "SETTLE_S", 0.0)
    with pytest.raises(XpError, match="500: out of memory") as caught:
        server.weights.restored("500: out of memory")
    assert caught.value.code is ExitCode.STAGE_FAILED


def test_without_another_server_the_run_ends(server: Server) -> None:
    server.link.tell(ServerState(0, "", "the vLLM server ended with -9 (after 3 restarts)"))
    with pytest.raises(XpError, match="after 3 restarts") as caught:
        server.generation.sync_weights()
    assert caught.value.code is ExitCode.ENGINE


def test_trls_client_tells_when_the_engine_cannot_answer_and_reads_a_policy_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.generation import vllm_generation

    link, seen = ServerLink(tmp_path), list[bool]()

    class Client:
        def init_communicator(self, device: int) -> None:
            del device
            seen.append(link.is_transferring())

        def update_named_params(self, metadata: Any, named_params: Any) -> None:
            seen.append(link.is_transferring())
            next(named_params)
            raise ConnectionError(metadata)

    monkeypatch.setattr(vllm_generation, "VLLMClient", Client)
    let_trl_tell(link)
    client, parameters = vllm_generation.VLLMClient(), iter([("a", 1), ("b", 2)])
    client.init_communicator(device=0)
    with pytest.raises(ConnectionError):
        client.update_named_params("metadata", parameters)
    assert seen == [True, True]
    assert not link.is_transferring()
    assert list(parameters) == []
