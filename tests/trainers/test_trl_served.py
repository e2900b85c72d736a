"""A vLLM server as a stage starts, asks, watches and stops it; a stub for vLLM (fake_vllm) answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.fake_vllm import FAKE, SAMPLING
from tests.support.http_server import Reply, http_server
from tests.support.launching import is_alive
from xp.backends.trl.worker.generation import let_trl_send_key
from xp.errors import ExitCode, XpError
from xp.worker.engines.completions import CompletionClient
from xp.worker.engines.config import VLLMServer
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.server import running, split_devices


def served(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    log: Path,
    timeout_s: float = 300.0,
    deadline_s: float = 600.0,
) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    return running(
        VLLMServer(("--max-num-seqs", "4"), 2, timeout_s, deadline_s),
        model,
        "2,3",
        log,
    )


def test_a_server_is_started_on_its_own_accelerators_and_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "vllm.log"
    with served(monkeypatch, "some/model", log) as (url, key):
        writer = CompletionClient(url, SAMPLING, [2], str(log), key=key)
        assert list(writer.answer(GenerationRequest([7, 8], 3, 1)).ids) == [8, 2]
    told = json.loads(log.read_text().splitlines()[0])
    assert told["devices"] == "2,3"
    assert told["argv"][:2] == ["serve", "some/model"]
    assert key not in log.read_text()
    assert told["argv"][-2:] == ["--max-num-seqs", "4"]
    with pytest.raises(XpError, match="the vLLM server failed"):
        CompletionClient(
            url,
            SAMPLING,
            [2],
            str(log),
        ).answer(GenerationRequest([7], 3, 1))


@pytest.mark.parametrize(
    ("sent", "deadline_s", "told"),
    [
        (signal.SIGKILL, 600.0, "the vLLM server ended with 137"),
        (signal.SIGSTOP, 2.0, "did not answer for 2 s and was killed"),
    ],
    ids=["dies", "hangs"],
)
def test_a_server_that_is_lost_ends_whoever_waits_for_it(
    sent: signal.Signals,
    deadline_s: float,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    log = tmp_path / "vllm.log"
    lost = []

    def lose() -> None:
        with served(
            monkeypatch,
            "some/model",
            log,
            deadline_s=deadline_s,
        ) as (url, key):
            lost.extend(servers())
            lost[0].send_signal(sent)
            CompletionClient(url, SAMPLING, [2], str(log), key=key).answer(
                GenerationRequest([7, 8], 3, 1)
            )

    with pytest.raises(XpError, match=told) as caught:
        lose()
    assert caught.value.code is ExitCode.ENGINE
    assert f"the end of {log}: " in str(caught.value)
    assert not is_alive(lost[0].pid)


STAGE = """
import os, signal, sys, time
from pathlib import Path
from xp.worker.engines import server
from xp.worker.engines.config import VLLMServer
server.LEAVE_S = 1.0
with server.running(VLLMServer((), 0, 300.0, 600.0), "some/model", "", Path(sys.argv[1])) as served:
    guard = Path("/proc/self/task", str(os.getpid()), "children").read_text().strip()
    server = Path("/proc", guard, "task", guard, "children").read_text()
    os.kill(int(server), signal.SIGKILL)
    time.sleep(600)  # a broadcast of weights that never returns
"""


def test_a_stage_with_a_lost_server_ends_with_its_code(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": f"{FAKE}{os.pathsep}{os.getcwd()}"}
    ended = subprocess.run(
        [sys.executable, "-c", STAGE, str(tmp_path / "vllm.log")],
        env=environ,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == ExitCode.ENGINE, ended.stderr
    assert "xp: the vLLM server ended with 137; the end of " in ended.stderr


def servers() -> list[psutil.Process]:
    """Servers that this process runs, each under its guard."""
    guards = [one for one in psutil.Process().children() if "some/model" in one.cmdline()]
    return [server for guard in guards for server in guard.children()]


def test_a_client_without_the_key_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "vllm.log"
    with served(monkeypatch, "some/model", log) as (url, key):
        told = json.loads(log.read_text().splitlines()[0])
        assert (
            told["argv"][told["argv"].index("--middleware") + 1]
            == "xp.worker.engines.key_check.EngineKeyCheck"
        )
        assert told["argv"][told["argv"].index("--host") + 1] == "127.0.0.1"
        assert key not in " ".join(told["argv"])
        for wrong in (None, "", key[:-1]):
            with pytest.raises(XpError, match="401"):
                CompletionClient(url, SAMPLING, [2], str(log), key=wrong).answer(
                    GenerationRequest([7], 3, 1)
                )


def test_trls_own_client_says_the_key_from_its_first_request_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl.generation import vllm_client, vllm_generation

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda: True)
    monkeypatch.setattr(vllm_generation, "VLLMClient", vllm_client.VLLMClient)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    let_trl_send_key("the-key")
    with http_server(lambda _: Reply({"data": [{"id": "policy"}], "world_size": 1})) as server:
        assert vllm_generation.VLLMClient(base_url=server.url).get_world_size() == 1
    assert server.paths == ["/health", "/v1/models", "/get_world_size"]
    assert {one.headers["authorization"] for one in server.requests if one.path != "/health"} == {
        "Bearer the-key"
    }


def test_a_server_that_does_not_come_up_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(XpError, match=r"ended with 1; .*no kernel for this GPU") as caught:
        served(monkeypatch, "dies", tmp_path / "a.log").__enter__()
    assert caught.value.code is ExitCode.RUNTIME
    began = time.monotonic()
    with pytest.raises(XpError, match="did not answer within 3 s"):
        served(monkeypatch, "silent", tmp_path / "b.log", 3.0).__enter__()
    assert time.monotonic() - began < 300


def test_accelerators_are_split_between_training_and_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert split_devices(3, 1) == ("4,5,6", "7")
    with pytest.raises(XpError, match="has 4"):
        split_devices(4, 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert split_devices(2, 2) == ("0,1", "2,3")
