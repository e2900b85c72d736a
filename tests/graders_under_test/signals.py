"""Graders and reward functions as people write them: with signals, processes, an event loop, hangs and crashes."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from xp.episode.outcome import EpisodeResult, GroupEpisode

NUM_ROWS = 8


def rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    prompt = [{"role": "user", "content": "?"}]
    return {
        "train": [
            {"prompt": prompt, "answer": str(at), "solution": f"${at}$"} for at in range(NUM_ROWS)
        ]
    }


def alarmed(answer: str, row: Mapping[str, Any]) -> float:
    """A code checker's own time limit."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(5)
    try:
        return float(str(row["answer"]) in answer)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def trl_reward(completions: Any, answer: Sequence[str], **_: Any) -> list[float]:
    texts = [one[0]["content"] for one in completions]
    return [alarmed(text, {"answer": right}) for text, right in zip(texts, answer, strict=True)]


async def trl_reward_later(completions: Any, answer: Sequence[str], **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return trl_reward(completions, answer)


def loads_slowly(answer: str, row: Mapping[str, Any]) -> float:
    """A grader with a limit, which is called once when its process starts."""
    del answer, row
    time.sleep(5)
    return 1.0


vars(loads_slowly).update(limit_s=9.0)


class AlarmedSteps:
    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config
        self._row = extras

    def step(self, action: str) -> dict[str, Any]:
        reward = alarmed(action, self._row)
        return {"observations": [], "reward": reward, "done": True, "metadata": {}}


def _right(text: str, right: str, sending: Any) -> None:
    sending.send(right in text)


def in_a_process(answer: str, row: Mapping[str, Any]) -> float:
    reading, sending = multiprocessing.Pipe()
    child = multiprocessing.Process(target=_right, args=(answer, row["answer"], sending))
    child.start()
    child.join(60)
    return float(reading.recv())


def runs_a_loop(answer: str, row: Mapping[str, Any]) -> float:
    async def right() -> bool:
        await asyncio.sleep(0)
        return str(row["answer"]) in answer

    return float(asyncio.run(right()))


_loops = set[int]()


async def keeps_its_loop(answer: str, row: Mapping[str, Any]) -> float:
    """1 as long as all calls of its process have the same loop, as the clients that people keep need it."""
    del answer, row
    _loops.add(id(asyncio.get_running_loop()))
    return float(len(_loops) == 1)


keeps_its_loop.processes = 1  # type: ignore[attr-defined]
_num_calls = 0


def counts(answer: str, row: Mapping[str, Any]) -> float:
    """Number of the calls so far, which one process must have."""
    global _num_calls
    del answer, row
    _num_calls += 1
    time.sleep(0.05)
    return float(_num_calls)


counts.processes = 1  # type: ignore[attr-defined]


def process_of(answer: str, row: Mapping[str, Any]) -> float:
    del answer, row
    return float(os.getpid())


def draws(answer: str, row: Mapping[str, Any]) -> Mapping[str, float]:
    """Numbers that differ between processes."""
    import numpy

    del answer, row
    time.sleep(0.3)
    return {"score": random.random(), "numpy": float(numpy.random.random())}


def leaves_an_alarm(answer: str, row: Mapping[str, Any]) -> float:
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    if "late" in answer:
        time.sleep(0.5)
    return alarmed(answer, row) if "late" in answer else 1.0


def _end_soon() -> None:
    time.sleep(0.5)
    os._exit(7)


def leaves_its_end(answer: str, row: Mapping[str, Any]) -> float:
    """Ends its process during a later call."""
    del row
    if "bomb" in answer:
        threading.Thread(target=_end_soon, daemon=True).start()
        return 1.0
    time.sleep(1.0)
    return 1.0


def misbehaves(answer: str, row: Mapping[str, Any]) -> float:
    """As the row of a number below six asks it to."""
    time.sleep(0.1)
    match int(row["answer"]):
        case 0:
            ctypes.string_at(0)
        case 1:
            os._exit(3)
        case 2:
            return float(len(bytearray(2 << 30)))
        case 3:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                pass
        case 4:
            signal.alarm(1)
            time.sleep(60)
        case 5:
            raise KeyboardInterrupt("no answer")
    return float(row["answer"] in answer)


def shaped(outcome: EpisodeResult, index: int) -> Mapping[str, float]:
    """A reward function that misbehaves as the grader does."""
    return {
        "reward": misbehaves(str(index), {"answer": str(index)}),
        "before": outcome.reward or 0.0,
    }


def with_alarm(outcome: EpisodeResult) -> float:
    return alarmed("1", {"answer": "1"}) + (outcome.reward or 0.0)


def of_a_group(episodes: Sequence[GroupEpisode]) -> list[float]:
    return [with_alarm(one.outcome) for one in episodes]


def ends_of_a_group(episodes: Sequence[GroupEpisode]) -> list[float]:
    os._exit(len(episodes))
