"""An environment whose episodes of a task have different rewards, and sources of group rewards that know them."""

from __future__ import annotations

import hashlib
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import RULES, FakeSession, call
from tests.support.sections import replace
from xp.envs.base import EnvUnavailable, Message, Task, ToolResult
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus, GroupEpisode

OWN = (0.25, None, 1.0, 0.5)
"""Own reward of each session of a group, in the order of opening; None: an outage."""
EXPECTED = {0.25: 0.075, 0.5: 1.15, 1.0: 2.3}
"""Own reward -> that of the group: rank + (own reward + 0.5 x the environment's score) / 10."""


class Mark:
    """An event that processes of one Python share, as functions of rewards run in a process of their own."""

    def __init__(self) -> None:
        name = hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]
        self._file = Path(tempfile.gettempdir()) / f"xp-test-all-open-{name}"

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def set(self) -> None:
        self._file.touch()

    def wait(self, limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while not self._file.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return self._file.exists()


ALL_OPEN = Mark()
"""Set when the episodes of two groups have begun."""
WINS = (call("win"),)
"""Turns of a model that ends an episode."""


class GroupedProvider:
    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._name = config.name
        self._opened = itertools.count()

    def open(self, task: Task) -> FakeSession:
        number = next(self._opened)
        own = OWN[number % len(OWN)]
        if number == 2 * len(OWN) - 1:
            ALL_OPEN.set()
        result = (
            EnvUnavailable("gone") if own is None else ToolResult(f"won {own}", own, finished=True)
        )
        return FakeSession(lambda *_: result)

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [Task(self._name, split, index, {"level": 3}) for index in indices]

    def score_group(self, task: Task, dialogues: Sequence[Sequence[Message]]) -> list[float]:
        assert all(one[-2]["tool_calls"][0]["function"]["name"] == "win" for one in dialogues)
        return [4 * float(one[-1]["content"].split()[-1]) for one in dialogues]

    def close(self) -> None:
        pass


async def ranked(episodes: list[GroupEpisode], task: Any) -> list[dict[str, float]]:
    """Index-aligned, although it works in another order."""
    assert task["metadata"] == {"level": 3}
    assert [one.tool_calls[0]["result"].reward for one in episodes] == [
        one.outcome.ungrouped for one in episodes
    ]
    order = sorted(range(len(episodes)), key=lambda at: episodes[at].outcome.reward or 0.0)
    return [{"reward": order.index(at) + (one.outcome.reward or 0) / 10, "rank": order.index(at)}
            for at, one in enumerate(episodes)]  # fmt: skip


def overtaken(episodes: list[GroupEpisode]) -> list[float]:
    """Waits until the last episode of another group has begun."""
    assert ALL_OPEN.wait(60), "no other group is played while this one is scored"
    return [float(len(episodes))] * len(episodes)


def broken(episodes: list[GroupEpisode]) -> list[float]:
    raise ZeroDivisionError(f"{len(episodes)} episodes")


def rules(function: str | None = "ranked", **changes: Any) -> EnvConfig:
    """The environment, with both sources of group rewards."""
    limits = replace(RULES.limits, retries_per_episode=0, max_sessions=2)
    fields: dict[str, Any] = {
        "provider": "tests.support.grouped:GroupedProvider",
        "group_score_weight": 0.5,
        "limits": limits,
    }
    name = None if function is None else f"tests.support.grouped:{function}"
    return replace(RULES, **{**fields, "group_reward_fn": name, **changes})


@contextmanager
def mixture(function: str | None = "ranked", **changes: Any) -> Iterator[EnvironmentMixture]:
    with EnvironmentMixture(EpisodeConfig({RULES.name: rules(function, **changes)}), {}) as mix:
        yield mix


def check_group(outcomes: Sequence[EpisodeResult], rewards: Sequence[float | None]) -> None:
    """Checks a group of OWN: its results, and the rewards that a trainer gets of them (None: void)."""
    assert sorted(one.ungrouped for one in outcomes if one.ungrouped is not None) == sorted(
        EXPECTED
    )
    assert sum(one.status is EpisodeStatus.VOID for one in outcomes) == 1
    assert list(rewards) == [one.reward for one in outcomes]
    for one in outcomes:
        if one.ungrouped is not None:
            assert one.reward == pytest.approx(EXPECTED[one.ungrouped])
            assert [*one.reward_steps] == ["reduce", "score_group", "group_reward_fn"]
            assert [*one.reward_steps.values()] == [one.ungrouped, 3 * one.ungrouped, one.reward]
            assert one.group["environment"] == 4 * one.ungrouped
            assert one.group["rank"] == sorted(EXPECTED).index(one.ungrouped)


def check_void_group(outcomes: Sequence[EpisodeResult]) -> None:
    """The same where the group's function fails: all are void, and their own rewards are on record."""
    assert {one.reward for one in outcomes} == {None}
    reasons = sorted(str(one.void_reason) for one in outcomes)
    name = "group_reward_fn tests.support.grouped:broken"
    fault = f"{name}: ToolCrashed: it raised ZeroDivisionError: 3 episodes"
    assert [one.partition(" (")[0] for one in reasons] == ["EnvUnavailable: gone"] + 3 * [fault]
    assert sorted(one.ungrouped for one in outcomes if one.ungrouped is not None) == sorted(
        EXPECTED
    )
