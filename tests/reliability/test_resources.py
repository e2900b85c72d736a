"""Threads, descriptors, memory and other people's event loops."""

from __future__ import annotations

import threading
import time

from tests.reliability.conftest import TASK, World


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
