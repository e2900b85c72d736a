"""Episodes at their own pace against lock-step, where a tool takes 0.2 s in the median and 5 s once in a hundred calls.

    python -m tools.benchmarks.bench_continuous [--episodes 64 256] [--places 64] [--turns 10]

Both ways play the same episodes with the same engine and the same latencies, one after the other. In lock-step, no
answer is taken before all of the turn are there, and no episode begins before all of a wave have ended. The bound is
what the latencies alone would take, with a policy that writes in no time.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from random import Random
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.support.fake_session import RULES, FakeSession
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from xp.backends.trl.worker.process import quiet_trainer
from xp.envs.base import Message, Task, ToolResult
from xp.episode.episode import Episode
from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import OpenEngine, Opening
from xp.worker.engines.play import Ended, EpisodePlay
from xp.worker.engines.transformers_engine import TransformersEngine

MEDIAN_S = 0.2
P99_S = 5.0
MAX_S = 20.0
SIGMA = math.log(P99_S / MEDIAN_S) / 2.3263
SAMPLING = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=None,
    min_p=0.0,
    repetition_penalty=1.0,
    stop=(),
    max_prompt_tokens=400,
    max_tokens_per_turn=12,
    max_response_tokens=4000,
)


def latencies(episode: int, turns: int) -> list[float]:
    """Seconds that each call of an episode takes; the same in both ways."""
    random = Random(f"latency/{episode}")
    return [min(MAX_S, random.lognormvariate(math.log(MEDIAN_S), SIGMA)) for _ in range(turns)]


class SlowMix:
    """Episodes whose every turn is answered, late."""

    def __init__(self, places: int, turns: int) -> None:
        self._places = places
        self._turns = turns

    def episode(self, row: TaskRow) -> Episode:
        waits = iter(latencies(row.index, self._turns))

        def hear(_: str) -> ToolResult:
            time.sleep(next(waits))
            return ToolResult("go on", 0.1, awaits_reply=True)

        rules = replace(RULES, provider="local", max_turns=self._turns)
        limits = replace(rules.limits, episode_timeout_s=3600.0)
        task = Task(row.env, row.split, row.index)
        return Episode(
            task, lambda: FakeSession(lambda *_: hear(""), hear), replace(rules, limits=limits)
        )

    def max_sessions(self) -> int:
        return self._places


class LockStepPlay(EpisodePlay):
    """Every episode of a wave waits for the slowest call of each turn, and a wave for its longest episode."""

    def __init__(self, *given: Any) -> None:
        self._gate = Future[None]()
        self._num_waiting = 0
        self._num_playing = 0
        super().__init__(*given)

    def _begin_next(self) -> None:
        """Begins a whole wave after the last episode of the one before."""
        self._num_playing = max(0, self._num_playing - 1)
        if self._num_playing:
            self._open_gate()
            return
        self._num_playing = min(self._num_slots, self._num_all - self._num_begun)
        for _ in range(self._num_playing):
            super()._begin_next()

    async def _write(self, *given: Any) -> Any:
        gate = self._gate
        self._num_waiting += 1
        self._open_gate()
        await Ended(gate)
        return await super()._write(*given)

    def _open_gate(self) -> None:
        if self._num_waiting == self._num_playing:
            self._num_waiting = 0
            gate = self._gate
            self._gate = Future()
            gate.set_result(None)

    def _run(self) -> Any:
        self._begin_next()
        while self._is_live:
            if self.engine.is_generating:
                self.engine.step(True)
            self._take_all()
        return iter(())


def row(number: int) -> TaskRow:
    opening = (Message(role="user", content=f"play {number // 8}"),)
    return TaskRow(
        f"slow/train/{number}", "slow", Purpose.TRAIN, "train", number, "h", opening, "[]", 1.0
    )


def seconds(way: type[EpisodePlay], count: int, places: int, turns: int) -> float:
    """Duration of playing in one way, in seconds."""
    tokenizer, model = tokenizer_and_model()
    chat = ChatTokens(tokenizer)
    mix: Any = SlowMix(places, turns)

    def engine(opening: Opening) -> TransformersEngine:
        return TransformersEngine(model, opening, chat.end_ids, SAMPLING, "1")

    opened: OpenEngine = engine
    began = time.monotonic()
    for _ in way(opened, chat, [(row(number), 0) for number in range(count)], mix, places):
        pass
    return time.monotonic() - began


def bound(count: int, places: int, turns: int) -> float:
    """Seconds of the latencies alone: a place plays one episode after the other."""
    ends = [0.0] * places
    for number in range(count):
        heapq.heapreplace(ends, ends[0] + sum(latencies(number, turns)))
    return max(ends)


def main(argv: Sequence[str] = ()) -> None:
    """Print each way's episodes a second, their ratio, and the share of what the latencies allow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--places", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    quiet_trainer(options.threads)
    for count in options.episodes:
        places = min(options.places, count)
        least = bound(count, places, options.turns)
        alone = seconds(EpisodePlay, count, places, options.turns)
        together = seconds(LockStepPlay, count, places, options.turns)
        print(
            f"{count} episodes of {options.turns} turns, {places} at the same time: {count / alone:.2f} episodes/s"
            f" at their own pace, {count / together:.2f} in lock-step ({together / alone:.1f} times);"
            f" {least / alone:.2f} of what the latencies allow ({count / least:.2f}/s)",
            flush=True,
        )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
