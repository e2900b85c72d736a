"""Threads, descriptors, memory, forks and other people's event loops."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.fake_session import call
from tests.ors_server import COUNTER, rules
from tests.reliability import proxy as faults
from tests.reliability.conftest import PATIENT, TASK, World
from tests.reliability.test_sessions import wait_for
from xp.envs.base import SessionLost
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus


@pytest.mark.scorecard(23)
@pytest.mark.parametrize("rollouts", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_23_rollouts_with_faults_leave_nothing_behind(world: World, rollouts: int) -> None:
    """Rounds of so many: what leaks grows in each of them, a pool or an arena until it has its size."""
    provider = world.provider(retries_per_episode=1)
    config = world.config(retries_per_episode=1)
    every_tenth = [faults.reset(True), faults.status(502, executed=True), faults.closed_after_200(), faults.status(429)]

    def rollout(number: int) -> EpisodeStatus:
        if number % 10 == 0:
            world.proxy.inject("/call", every_tenth[number // 10 % len(every_tenth)])
        episode = Episode(TASK, lambda: provider.open(TASK), config)
        for tool in ("inc", "inc", "submit"):
            if episode.step(call(tool)).is_done:
                break
        return episode.settle().status

    def measure() -> tuple[int, int, float]:
        assert wait_for(lambda: not world.effects.still_open())
        world.proxy.seen.clear()
        world.proxy._injected.clear()
        gc.collect()
        time.sleep(0.3)
        process = psutil.Process()
        return process.num_threads(), process.num_fds(), process.memory_info().rss / 2**20

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(rollout, range(rollouts)))
        measured = [measure()]
        for _ in range(4):
            statuses = list(pool.map(rollout, range(rollouts)))
            assert statuses.count(EpisodeStatus.FINISHED) >= 0.95 * rollouts
            measured.append(measure())
            (threads, fds, megabytes), found = measured[-2:]
            if found[0] <= threads and found[1] <= fds + 5 and found[2] <= megabytes + 5:
                break
        else:
            pytest.fail(f"threads, descriptors and MB grew in every round: {measured}")
    assert world.effects.still_open() == set()
    assert world.effects.most("teardown") == 1


@pytest.mark.scorecard(24)
def test_24_sixty_four_threads_share_one_provider(world: World) -> None:
    provider = world.provider()

    def rollout(_: int) -> float | None:
        episode = Episode(TASK, lambda: provider.open(TASK), world.config())
        for tool in ("inc", "inc", "submit"):
            episode.step(call(tool))
        return episode.settle().reward

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(rollout, range(128))) == [1.5] * 128
    assert sum(thread.name == "xp-envs" for thread in threading.enumerate()) == 1


@pytest.mark.scorecard(24)
def test_24_a_caller_inside_an_event_loop_is_served_and_two_loops_are_one_too_many_for_nobody(world: World) -> None:
    provider = world.provider()

    async def here() -> float | None:
        return provider.open(TASK).call("inc", {}).reward

    async def there() -> float | None:
        session = await asyncio.to_thread(provider.open, TASK)
        return (await asyncio.to_thread(session.call, "inc", {})).reward

    assert asyncio.run(here()) == 0.25
    assert asyncio.run(there()) == 0.25


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


@pytest.mark.scorecard(24)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_24_a_forked_child_builds_its_own_way_and_leaves_the_parents_alone(world: World) -> None:
    provider = world.provider()
    session = provider.open(TASK)
    session.call("inc", {})
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        results = context.Queue()
        child = context.Process(target=_in_child, args=(provider, session, results))
        child.start()
        assert results.get(timeout=250) == 0.25
        child.join(250)
        assert child.exitcode == 0
    assert session.call("inc", {}).text == "2"
    session.close()
    assert wait_for(lambda: world.effects.count("teardown") == 4)


@pytest.mark.scorecard(24)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_24_a_child_that_ends_by_exit_does_not_end_its_parents_sessions(world: World) -> None:
    session = world.session()
    pid = os.fork()
    if pid == 0:
        import sys

        try:
            gc.collect()
            sys.exit(0)  # Runs pytest's own handlers no further than the finally below.
        finally:
            from xp.envs import process_bound

            process_bound.close_all()
            os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.2)
    assert session.call("inc", {}).text == "1"
    assert world.effects.count("teardown") == 0


def _spawned(results: Any) -> None:
    provider = OpenRewardProvider(rules(serve=COUNTER, **PATIENT), os.environ)
    results.put(provider.open(TASK).call("inc", {}).reward)
    provider.close()


@pytest.mark.scorecard(24)
def test_24_a_spawned_child_serves_itself() -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    child = context.Process(target=_spawned, args=(results,))
    child.start()
    assert results.get(timeout=250) == 0.25
    child.join(250)
    assert child.exitcode == 0


@pytest.mark.scorecard(24)
def test_24_sessions_beyond_the_allowed_number_wait_for_a_free_one(world: World) -> None:
    provider = world.provider(max_sessions=2)
    first, second = provider.open(TASK), provider.open(TASK)
    opened: list[float] = []
    waiting = threading.Thread(target=lambda: opened.append(provider.open(TASK).call("inc", {}).reward or 0.0))
    waiting.start()
    time.sleep(0.2)
    assert opened == []
    first.close()
    waiting.join(250)
    assert opened == [0.25]
    second.close()
