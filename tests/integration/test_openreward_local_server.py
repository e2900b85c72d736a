"""A local server as a stage uses it: started, found wanting, stopped."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from tests.support.child import Fork
from tests.support.launching import ROOT, is_alive
from tests.support.ors_server import COUNTER, rules
from tests.support.waiting import wait_for
from xp.envs import local_server
from xp.envs.base import EnvFault
from xp.envs.local_server import LocalServer
from xp.envs.openreward import OpenRewardProvider
from xp.errors import ExitCode, XpError

pytestmark = pytest.mark.integration


def test_what_cannot_be_served_is_said_in_one_message() -> None:
    serve = "no_such_module:Env"
    reason = "ModuleNotFoundError"
    with pytest.raises(XpError, match=reason) as caught:
        LocalServer(serve).start()
    assert caught.value.code is ExitCode.ENVIRONMENT
    assert serve in str(caught.value)


def test_tools_that_block_run_in_all_sessions_concurrently() -> None:
    limits = {"call_timeout_s": 300.0, "create_timeout_s": 300.0, "memory_gb": 1.0}
    provider = OpenRewardProvider(
        rules(serve="tests.envs_under_test.counter:Gathering", **limits), os.environ
    )
    task = provider.tasks("train", [1])[0]
    with ThreadPoolExecutor(40) as pool:
        sessions = list(pool.map(lambda _: provider.open(task), range(40)))
        texts = list(pool.map(lambda session: session.call("meet", {}).text, sessions))
    assert texts == ["met"] * 40
    provider.close()


def test_it_has_the_memory_limit_and_more_is_a_fault() -> None:
    provider = OpenRewardProvider(
        rules(serve="tests.envs_under_test.counter:Hungry", memory_gb=1.0), os.environ
    )
    session = provider.open(provider.tasks("train", [1])[0])
    assert session.call("eat", {"amount": 0.05}).text == "50000000"
    with pytest.raises(EnvFault):
        session.call("eat", {"amount": 2.0})
    assert provider.open(provider.tasks("train", [1])[0]).call("inc", {}).text == "1", (
        "the server goes on"
    )
    provider.close()


def test_a_server_starts_with_the_first_question_is_replaced_when_killed_and_ends_with_its_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_server, "PING_S", 0.2)
    provider = OpenRewardProvider(rules(serve=COUNTER, create_timeout_s=600.0), os.environ)
    assert provider.server is None
    task = provider.tasks("train", [1])[0]
    assert provider.server is not None
    url = provider.server.url
    pid = provider.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert provider.open(task).call("inc", {}).text == "1"
    assert (provider.server.url, provider.server.pid != pid) == (url, True)
    pid = provider.server.pid
    provider.close()
    assert pid is not None
    assert not psutil.pid_exists(pid)


def keeps_the_interpreter() -> None:
    stuck = rules(serve="tests.envs_under_test.counter:Stuck", call_timeout_s=600.0)
    provider = OpenRewardProvider(stuck, os.environ)
    session = provider.open(provider.tasks("train", [1])[0])
    assert provider.server is not None
    print(provider.server.pid, provider.server.url.rpartition(":")[2], flush=True)
    session.call("backtrack", {})


def test_a_server_with_a_busy_tool_ends_with_its_run() -> None:
    run = Fork(keeps_the_interpreter, ROOT)
    pid, port = map(int, run.out.readline().split())
    assert wait_for(lambda: not answers(port)), "the tool has the interpreter"
    run.send(signal.SIGKILL)
    run.process.join()
    try:
        assert wait_for(lambda: not is_alive(pid) and not listens(port))
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_server_leaves_no_process_that_its_tools_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "PING_S", 0.2)
    provider = OpenRewardProvider(rules(serve="tests.envs_under_test.counter:Stuck"), os.environ)
    started = int(provider.open(provider.tasks("train", [1])[0]).call("leave", {}).text)
    assert is_alive(started)
    assert provider.server is not None
    assert provider.server.pid is not None
    os.kill(provider.server.pid, signal.SIGKILL)
    assert wait_for(lambda: not is_alive(started))
    provider.close()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def answers(port: int) -> bool:
    """Whether a server answers a request at once, whatever the answer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            return bool(connection.recv(1))
    except TimeoutError:
        return False
