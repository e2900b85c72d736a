"""OpenEnv environments on OpenEnv's own server, in real processes."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_session import RULES
from tests.support.openenv_counter import MODULE, counter, task
from tests.support.ors_server import rules
from tests.support.sections import replace
from xp.contrib.contracts.provider import lent
from xp.envs.base import (
    DeadlineExceeded,
    EnvUnavailable,
    ProtocolError,
    SessionLost,
    ToolCrashed,
)
from xp.envs.light_sdk import import_openenv
from xp.envs.openenv import OpenEnvProvider
from xp.envs.target import origin
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.spec.dialect import Dialect

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenEnvProvider]:
    yield from lent(OpenEnvProvider(counter(), os.environ))


@pytest.fixture(scope="module")
def tools() -> Iterator[OpenEnvProvider]:
    """An environment of MCP tools."""
    yield from lent(OpenEnvProvider(counter("Tools"), os.environ))


@contextmanager
def impatient(provider: OpenEnvProvider, **limits: float) -> Iterator[None]:
    """The provider, whose server runs, with smaller limits within the block."""
    core = provider._core()
    patient, core.limits = core.limits, replace(core.limits, **limits)
    try:
        yield
    finally:
        core.limits = patient


def test_tasks_are_rows_times_reset_seeds(provider: OpenEnvProvider) -> None:
    assert provider.num_tasks("train") == 8
    sessions = [provider.open(task(index)) for index in (0, 3, 4, 7)]
    assert [session.prompt()[0]["content"] for session in sessions] == [
        '{"count": 0}',
        '{"count": 3}',
        "Go.",
        "Go.",
    ]
    assert [session.call("step", {"amount": 0}).text for session in sessions[2:]] == [
        '{"count": 50}',
        '{"count": 53}',
    ]
    for session in sessions:
        session.close()


def test_a_fault_of_the_environments_own_is_no_score(provider: OpenEnvProvider) -> None:
    session = provider.open(task())
    with pytest.raises(ToolCrashed, match="thirteen"):
        session.call("step", {"amount": 13})
    session.close()


def test_a_reset_that_ends_the_episode_is_a_fault() -> None:
    with closing(
        OpenEnvProvider(counter(rows="tests.envs_under_test.rows:over"), os.environ)
    ) as over:
        with pytest.raises(ProtocolError, match="answers done: true, so that the episode has no"):
            over.open(task())


def test_a_late_answer_is_never_taken_for_the_next_ones(provider: OpenEnvProvider) -> None:
    session = provider.open(task())
    session.tools()
    with impatient(provider, call_timeout_s=0.5), pytest.raises(DeadlineExceeded):
        session.call("step", {"amount": 1, "wait_s": 1.0})
    time.sleep(1.0)  # The late answer is on its way by now.
    with pytest.raises(SessionLost):
        session.call("step", {"amount": 2})
    session.close()
    again = provider.open(task())
    assert again.call("step", {"amount": 2}).text == '{"count": 2}'
    again.close()


def test_the_first_refusal_of_a_server_at_capacity_is_the_bound_of_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = OpenEnvProvider(counter("Lonely"), os.environ)

    def play(amount: int) -> float | None:
        session = found.open(task())
        reward = session.call("step", {"amount": amount}).reward
        time.sleep(0.3)
        session.close()
        return reward

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, range(6))) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    found.close()
    assert [line for line in caplog.messages if "session" in line or "answer" in line] == [
        f"{origin(found._reach().url)} holds 1 session at a time; xp opens no more (env.limits.max_sessions)"
    ]


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("say", {"text": "hi"}),
    ("say", {}),
    ("say", {"text": 1}),
    ("shout", {"text": "hi"}),
    ("fail", {}),
    ("add", {"a": 1, "b": 2}),
    ("add", {"a": "one", "b": 2}),
    ("add", {"a": 1, "b": 2, "c": 3}),
]


def test_rewards_ends_and_texts_of_mcp_calls_are_the_environments_own_bad_calls_included(
    tools: OpenEnvProvider,
) -> None:
    session = tools.open(task())
    results = [session.call(*one) for one in CALLS]
    session.close()
    import_openenv()
    module = importlib.import_module(MODULE)
    expected = asyncio.run(module.own_results(module.Tools(), CALLS))
    assert [(one.text, one.reward, one.finished, one.is_call_error) for one in results] == expected


CLASSES = {"echo": "OpenEnvEcho", "coding": "Coding"}


@functools.cache
def bundled(name: str) -> OpenEnvProvider:
    """One server for all tests of an environment; it ends with the process."""
    module = f"openenv_{name}"
    return OpenEnvProvider(
        rules(
            provider="openenv",
            serve=f"xp.envs.builtin.{module}:{CLASSES[name]}",
            rows=f"xp.envs.builtin:{name}.jsonl",
        ),
        os.environ,
    )


def play(name: str, index: int, *turns: str) -> EpisodeResult:
    config = replace(RULES, dialect=Dialect.ACTION)
    episode = Episode(
        task(index),
        lambda: bundled(name).open(task(index)),
        config,
    )
    for text in turns:
        episode.step(text)
    return episode.settle()


def test_the_coding_environment_is_done_when_the_tests_pass() -> None:
    wrong = "def double(n): return n"
    right = "def double(n): return 2 * n"
    outcome = play("coding", 0, f"<action>{wrong}</action>", f"<action>{right}</action>")
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.step_rewards == (0.0, 1.0)


@pytest.mark.parametrize(
    "cheat",
    [
        "import os; print('passed', flush=True); os._exit(0)",
        "import time; time.sleep(60)",
        "x = ' ' * 10**10",
    ],
)
def test_a_program_that_does_not_reach_its_tests_has_passed_none(cheat: str) -> None:
    outcome = play("coding", 0, f"<action>{cheat}</action>")
    assert (outcome.status is not EpisodeStatus.VOID, outcome.reward) == (True, 0.0)


def test_strangers_get_neither_an_answer_nor_a_session(provider: OpenEnvProvider) -> None:
    async def ask(url: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{url}/schema") as response:
                status = response.status
            try:
                await client.ws_connect(f"{url}/ws")
            except aiohttp.WSServerHandshakeError as error:
                return status, str(error.status)
            return status, "open"

    assert asyncio.run(ask(provider._reach().url)) == (401, "403")


def interpreter(place: Path, *paths: str) -> str:
    """A stub for a virtual environment: a program that notes that it was used and then is this interpreter."""
    other = place / "python"
    own = ":".join([*paths, *sys.path])
    other.write_text(
        f'#!/bin/sh\ntouch {place}/used\nPYTHONPATH="$PYTHONPATH:{own}" exec {sys.executable} "$@"\n'
    )
    other.chmod(other.stat().st_mode | stat.S_IXUSR)
    return str(other)


def test_what_the_trainers_python_lacks_is_served_by_xps(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/a_package_of_another_interpreter.py").touch()
    xps = interpreter(tmp_path, f"{tmp_path}/packages")
    found = OpenEnvProvider(
        counter(serve="tests.envs_under_test.elsewhere:Counter"), {**os.environ, "XP_PYTHON": xps}
    )
    session = found.open(task())
    assert session.call("step", {"amount": 2}).text == '{"count": 2}'
    session.close()
    found.close()


def test_a_container_is_started_used_and_removed(
    provider: OpenEnvProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docker is a stub here, that names a server of this test's as the container's port."""
    log = tmp_path / "calls"
    docker = tmp_path / "docker"
    url = provider._reach().url
    cases = f"run) echo abc;; port) echo {url.removeprefix('http://')};; inspect) echo running 0;;"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase $1 in {cases} esac\n')
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("xp.envs.docker._is_healthy", lambda asked: asked == url)
    found = OpenEnvProvider(counter(serve=None, image="counter:1"), {})
    with pytest.raises(
        (EnvUnavailable, ProtocolError)
    ):  # The stub's server wants a key that no container does.
        found.open(task())
    found.close()
    calls = log.read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["run", "port", "inspect", "rm"]
    assert "127.0.0.1::8000" in calls[0]
