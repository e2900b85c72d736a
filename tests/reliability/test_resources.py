"""Threads, descriptors, memory, forks and other people's event loops."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import pytest

from tests.reliability.conftest import TASK, World
from tests.support.waiting import wait_for
from xp.envs.base import SessionLost
from xp.envs.openreward import OpenRewardProvider


def _in_child(provider: OpenRewardProvider, inherited: Any, results: Any) -> None:
    try:
        try:
            inherited.call("inc", {})
            results.put("an inherited session was used")
        except SessionLost:
            inherited.close()
        session = provider.open(TASK)
        results.put(session.call("inc", {}).reward)
        provider.close()
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_its_parent_alone(world: World) -> None:
    provider = world.provider()
    session = provider.open(TASK)
    session.call("inc", {})
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        results = context.Queue()
        child = context.Process(target=_in_child, args=(provider, session, results))
        child.start()
        assert results.get(timeout=250) == 0.25
        child.join(250)
        assert child.exitcode == 0
    assert session.call("inc", {}).text == "2"
    session.close()
    assert wait_for(lambda: world.effects.count("teardown") == 3)


def test_sessions_beyond_the_allowed_number_wait_for_a_free_one(world: World) -> None:
    provider = world.provider(max_sessions=2)
    first = provider.open(TASK)
    second = provider.open(TASK)
    opened: list[float] = []
    waiting = threading.Thread(
        target=lambda: opened.append(provider.open(TASK).call("inc", {}).reward or 0.0)
    )
    waiting.start()
    time.sleep(0.2)
    assert opened == []
    first.close()
    waiting.join(250)
    assert opened == [0.25]
    second.close()
