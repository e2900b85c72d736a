"""Slots of real servers: how many sessions they hold and open at once; nothing is measured on another's server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.ors_server import COUNTER, Effects, rules, running
from tests.support.sections import replace
from tests.support.waiting import wait_for
from xp.envs import slots
from xp.envs.openreward import OpenRewardProvider
from xp.envs.slots import measure_slots, num_slots_of, slot_limits

pytestmark = pytest.mark.integration


@contextmanager
def provider(num_slots: int, **address: Any) -> Iterator[OpenRewardProvider]:
    config = rules(create_timeout_s=60.0, **address)
    found = OpenRewardProvider(
        replace(config, limits=slot_limits(config.limits, num_slots)), os.environ
    )
    try:
        yield found
    finally:
        found.close()


def test_a_server_with_room_holds_all_and_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = running(COUNTER)
    effects = Effects(server.effects)
    monkeypatch.setenv("OPENREWARD_API_KEY", server.server.key)
    with provider(20, target=server.server.url, allowed_origins=(server.server.url,)) as found:
        measured = measure_slots(found, found.tasks("train", [1])[0], 20)
    assert measured.num_idle == 20
    assert measured.fault is None
    assert 1 <= measured.at_once <= 20
    assert "20 idle sessions at the same time, the largest number that was tried" in str(measured)
    assert str(measured).endswith(
        f": preparation.concurrency={measured.at_once} env.limits.max_sessions=20"
    )
    assert effects.count("init") == 20
    assert wait_for(lambda: not effects.still_open())


def test_a_server_that_refuses_is_measured_up_to_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "DEADLINE_S", 3.0)
    with provider(40, serve="tests.envs_under_test.narrow:narrow") as found:
        measured = measure_slots(found, found.tasks("train", [1])[0], 40)
    assert measured.num_idle == 12
    assert "429" in str(measured.fault)
    assert "env.limits.max_sessions=12" in str(measured)


@pytest.mark.parametrize(
    ("address", "requested", "expected"),
    [
        ({"serve": COUNTER, "max_sessions": 10}, None, 10),
        ({"target": "https://example.org"}, None, None),
        ({"target": "Org/Name"}, None, None),
        ({"target": "Org/Name"}, 30, 30),
    ],
)
def test_anothers_server_is_measured_by_request_only(
    address: dict[str, Any], requested: int | None, expected: int | None
) -> None:
    assert num_slots_of(rules(**{"max_sessions": 256, **address}), requested) == expected
