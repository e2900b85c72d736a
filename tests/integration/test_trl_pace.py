"""Episodes under TRL go on at their own pace: none waits for another's tool call, or for a wave to end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.graders_under_test.graders import TOGETHER
from tests.support.fake_session import RULES, FakeSession, with_limits
from tests.support.modules import alone
from tests.support.sections import replace, sampling_of
from tests.support.tiny import tokenizer_and_model
from xp.__main__ import main
from xp.composition import compose
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import Message, Task, ToolResult
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode, XpError
from xp.lib.signals import StopSignal
from xp.planning.episode import episode_config
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.engines.play import EpisodePlay, Rollout
from xp.worker.engines.transformers_engine import TransformersEngine

SAMPLING = sampling_of(400, 6, 400)
TURNS = 3

Hear = Callable[[int, int], None]
"""What the environment does before it answers turn `turn` of episode `number`."""


class Mix:
    """Conversations of TURNS turns, of which `places` may go on at the same time."""

    def __init__(self, hear: Hear, places: int) -> None:
        self._hear = hear
        self._places = places
        self.ended: dict[int, threading.Event] = {}

    def episode(self, row: TaskRow) -> Episode:
        number = row.index
        turns = iter(range(TURNS))
        self.ended[number] = threading.Event()

        def grade(_: str) -> ToolResult:
            turn = next(turns)
            self._hear(number, turn)
            if turn == TURNS - 1:
                self.ended[number].set()
                return ToolResult("over", float(number), finished=True)
            return ToolResult("go on", None, awaits_reply=True)

        rules = with_limits(replace(RULES, provider="local"), episode_timeout_s=3600.0)
        return Episode(
            Task("fake", "train", number), lambda: FakeSession(lambda *_: grade(""), grade), rules
        )

    def max_sessions(self) -> int:
        return self._places


def rows(count: int) -> list[TaskRow]:
    opening = (Message(role="user", content="play"),)
    return [
        TaskRow(
            f"fake/train/{number}", "fake", Purpose.TRAIN, "train", number, "h", opening, "[]", 1.0
        )
        for number in range(count)
    ]


def play(
    tasks: Sequence[TaskRow],
    mix: Any,
    kind: type[TransformersEngine] = TransformersEngine,
    **options: Any,
) -> EpisodePlay:
    """The play of a sample of each task, by an engine of this kind."""
    tokenizer, model = tokenizer_and_model()
    chat = ChatTokens(tokenizer)
    engine = partial(
        kind,
        model,
        end_ids=chat.end_ids,
        sampling=SAMPLING,
        seed="1",
    )
    numbered = [
        (row, sum(row is earlier for earlier in tasks[:at])) for at, row in enumerate(tasks)
    ]
    return EpisodePlay(engine, chat, numbered, mix, **options)


def played(count: int, places: int, hear: Callable[[Mix], Hear]) -> list[Rollout]:
    mix: Any = Mix(lambda number, turn: hear(mix)(number, turn), places)
    return list(play(rows(count), mix))


class Fragile(TransformersEngine):
    """An engine that is lost before its second step."""

    steps_left = 2

    def step(self, is_live: bool) -> None:
        self.steps_left -= 1
        if self.steps_left == 0:
            self._opening.deliver(XpError("the engine is gone", ExitCode.ENGINE))
            self._opening.deliver(
                XpError("the engine is gone, says another request", ExitCode.ENGINE)
            )
            return
        super().step(is_live)


def test_all_episodes_ask_a_local_environment_concurrently() -> None:
    graders = "tests.graders_under_test.graders"
    spec = compose(["env=graded", f"env.grader={graders}:meets", f"env.rows={graders}:rows"])
    with EnvironmentMixture(episode_config(spec), os.environ) as mix:
        (name,) = spec.env.members
        tasks = [
            replace(row, env=name, messages=(Message(role="user", content=f"Say {row.index}."),))
            for row in rows(TOGETHER)
        ]
        rollouts = list(play(tasks, mix))
    assert {one.outcome.void_reason for one in rollouts} == {None}
    assert rewards(rollouts) == [1.0] * TOGETHER


def test_a_signal_that_interrupts_no_wait_still_ends_the_play() -> None:
    is_handled = threading.Event()
    in_time = []

    def handle(number: int, _: object) -> None:
        is_handled.set()
        raise StopSignal(number)

    def hear(_: Mix) -> Hear:
        def ends(*_: int) -> None:
            time.sleep(0.3)  # now the main thread waits
            signal.raise_signal(
                signal.SIGUSR1
            )  # Python notes it for the main thread, whose wait goes on
            in_time.append(is_handled.wait(30.0))

        return ends

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(StopSignal):
            played(1, 1, hear)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert in_time == [True]


def test_a_held_out_episode_that_waits_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graders = alone("graders_under_test/graders", tmp_path, monkeypatch)
    task = (
        "env=graded",
        f"env.grader={graders}:waits_for_others",
        f"env.rows={graders}:held_out_rows",
    )
    sizes = ("env.limits.retries_per_episode=0", "training.max_tokens_per_turn=4", "hardware=cpu")
    words = ["eval", "model=tiny", *task, *sizes, "env.held_out.split=test", "eval.concurrency=2"]
    assert main([*words, f"outputs={tmp_path}"]) == ExitCode.OK
    (file,) = tmp_path.glob("evaluations/*/eval.json")
    found = json.loads(file.read_text())["summary"]
    assert found["num_episodes"] == 9
    assert found["num_void"] == 0
    assert found["reward"]["value"] == 1.0
    (file,) = tmp_path.glob("evaluations/*/trajectories/*.jsonl")
    records = read_trajectories(file)
    assert len({record["index"] for record in records}) == 9
    assert all(record["tokens"]["generated"] > 0 for record in records)


def test_an_episode_without_order_comes_when_it_ends_and_none_begins_after_a_stop() -> None:
    first_may_end = threading.Event()

    def hear(number: int, _: int) -> None:
        assert number or first_may_end.wait(DEADLINE_S)

    playing = play(rows(9), Mix(hear, 9), slots=2, in_order=False)
    ended = []
    for one in playing:
        ended.append(one.record.task.index)
        if len(ended) == 3:
            playing.begin_no_more()
            first_may_end.set()
    assert ended[:3] == [1, 2, 3]
    assert set(ended) <= {0, 1, 2, 3, 4}
    assert 0 in ended


def test_a_lost_engine_ends_the_play() -> None:
    with pytest.raises(XpError, match="the engine is gone") as caught:
        list(play(rows(4), Mix(lambda *_: None, 2), Fragile))
    assert caught.value.code is ExitCode.ENGINE


def rewards(rollouts: list[Rollout]) -> list[float | None]:
    return [one.outcome.reward for one in rollouts]


def test_at_no_time_more_episodes_go_on_than_may_have_sessions() -> None:
    lock = threading.Lock()
    num_open = [0]
    most = [0]

    class Counted(FakeSession):
        def close(self) -> None:
            time.sleep(0.05)
            with lock:
                num_open[0] -= 1
            super().close()

    def open_session() -> FakeSession:
        with lock:
            num_open[0] += 1
            most[0] = max(most[0], num_open[0])
        # So long a reply leaves no room for a turn: the episode is cut, and no step closes its session.
        return Counted(
            lambda *_: ToolResult(""), lambda _: ToolResult("go on " * 400, None, awaits_reply=True)
        )

    mix: Any = Mix(lambda *_: None, 3)
    mix.episode = lambda row: Episode(
        Task("fake", "train", row.index), open_session, replace(RULES, provider="local")
    )
    assert len(list(play(rows(8), mix))) == 8
    assert most[0] == 3


def test_a_fault_of_xps_own_ends_the_play(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Episode) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Episode, "settle", broken)
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        played(4, 2, lambda _: lambda *_: None)
    assert set(threading.enumerate()) <= before  # a thread of an earlier test may end meanwhile
