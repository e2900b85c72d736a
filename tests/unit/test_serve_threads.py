"""Threads of blocking calls in a served environment."""

from __future__ import annotations

import asyncio
import threading

import pytest

from xp.envs.bounds import stacks_within
from xp.envs.serve import Threads


class Forgetful(threading.Semaphore):
    """Count of waiting threads that is always 0: Python 3.12's own pool often counts so."""

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        del blocking, timeout
        return False


@pytest.mark.parametrize("together", [1, 5])
def test_there_are_as_many_threads_as_calls_at_the_same_time(together: int) -> None:
    async def fifty_rounds() -> None:
        asyncio.get_running_loop().set_default_executor(pool)
        for _ in range(50):
            barrier = threading.Barrier(together)
            await asyncio.gather(*(asyncio.to_thread(barrier.wait) for _ in range(together)))

    pool = Threads(1024)
    pool._idle_semaphore = Forgetful()
    asyncio.run(fifty_rounds())
    assert len(pool._threads) == together


def test_calls_beyond_the_largest_number_of_threads_wait() -> None:
    with Threads(2) as pool:
        calls = [pool.submit(int, str(number)) for number in range(50)]
        assert [call.result() for call in calls] == list(range(50))
        assert len(pool._threads) <= 2


def test_memory_has_room_for_whole_stacks() -> None:
    assert stacks_within(4.0) > stacks_within(0.5) > 1 == stacks_within(0.0)
