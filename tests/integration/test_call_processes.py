"""A user's graders and reward functions on the main thread of a process: signals work, and a crash costs one episode."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import pytest

from tests.support.child import Fork
from tests.support.fake_session import with_limits
from tests.support.launching import ROOT, is_alive
from tests.support.ors_server import rules
from tests.support.waiting import wait_for
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import Message, Task
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.envs.graded import GradedProvider
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.spec.env import GraderForm
from xp.spec.reward_fn import WeightedFnSpec

MODULE = "tests.graders_under_test.signals"
MATH = "tests.graders_under_test.math_signals"


def graded(grader: str = "alarmed", **changes: object) -> EnvConfig:
    name = grader if ":" in grader else f"{MODULE}:{grader}"
    config = rules(name="x", provider="local", grader=name, rows=f"{MODULE}:rows", **changes)
    return with_limits(config, retries_per_episode=0)


@contextmanager
def opened(config: EnvConfig) -> Iterator[GradedProvider]:
    provider = GradedProvider(config, {})
    try:
        yield provider
    finally:
        provider.close()


def settled(provider: GradedProvider, config: EnvConfig, text: str, index: int) -> EpisodeResult:
    task = Task("x", "train", index)
    episode = Episode(task, lambda: provider.open(task), config)
    episode.step(text)
    return episode.settle()


def played(config: EnvConfig, answers: Sequence[tuple[int, str]]) -> list[EpisodeResult]:
    """The results of answers to rows, which are graded at the same time."""
    with opened(config) as provider, ThreadPoolExecutor(len(answers)) as pool:
        playing = [
            pool.submit(
                settled,
                provider,
                config,
                text,
                at,
            )
            for at, text in answers
        ]
        return [one.result() for one in playing]


@pytest.mark.parametrize(
    ("grader", "form"),
    [
        (f"{MATH}:plain", GraderForm.XP),
        (f"{MATH}:compute_score", GraderForm.VERL),
        ("AlarmedSteps", GraderForm.XP),
        ("in_a_process", GraderForm.XP),
        ("runs_a_loop", GraderForm.XP),
        ("trl_reward_later", GraderForm.TRL),
    ],
)
def test_a_grader_with_signals_scores_a_right_answer_in_each_form(
    grader: str, form: GraderForm
) -> None:
    if "math" in grader:
        pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")
    config = graded(grader, grader_form=form)
    with opened(config) as provider:
        texts = [(1, "It is \\boxed{1}."), (2, "It is \\boxed{9}.")]
        results = [settled(provider, config, text, at) for at, text in texts]
    assert [(one.reward, one.void_reason) for one in results] == [(1.0, None), (0.0, None)]


def test_a_grader_that_is_not_ready_in_time_is_a_fault_and_no_wrong_answer() -> None:
    config = with_limits(graded("loads_slowly"), create_timeout_s=1.0)
    with opened(config) as provider:
        result = settled(provider, config, "1", 1)
    assert (result.status, result.reward) == (EpisodeStatus.VOID, None)
    assert "EnvUnavailable" in str(result.void_reason)
    assert "create_timeout_s" in str(result.void_reason)


FAULTS = (
    "SIGSEGV ended it",
    "it ended with code 3",
    "MemoryError",
    "took longer than 3 s",
    "SIGALRM ended it",
    "KeyboardInterrupt: no answer",
)


def check_own_faults(results: Sequence[EpisodeResult], named: str) -> None:
    """Each of the first is void, with its own fault; the others have their rewards."""
    bad = results[: len(FAULTS)]
    good = results[len(FAULTS) :]
    for result, fault in zip(bad, FAULTS, strict=True):
        assert result.status == EpisodeStatus.VOID
        assert result.reward is None
        assert named in str(result.void_reason)
        assert fault in str(result.void_reason)
    assert [(one.reward, one.void_reason) for one in good] == [(1.0, None)] * len(good)
    assert len(good) > 1


def test_a_grader_that_hangs_or_crashes_costs_its_own_episode_alone() -> None:
    config = with_limits(graded("misbehaves"), call_timeout_s=3.0, memory_gb=1.0)
    check_own_faults(played(config, [(at, str(at)) for at in range(8)]), "the grader")


def test_a_reward_function_that_crashes_costs_its_own_episode_alone() -> None:
    shaped = (WeightedFnSpec(fn=f"{MODULE}:shaped", weight=1.0),)
    config = graded("alarmed", reward_fn=shaped)
    with EnvironmentMixture(EpisodeConfig({"x": config}), os.environ) as mix:
        results = []
        for index in (1, 6):
            episode = episode_of(mix, index)
            episode.step(str(index))
            results.append(episode.settle())
    crashed, whole = results
    assert crashed.status == EpisodeStatus.VOID
    assert crashed.reward is None
    assert f"reward_fn {MODULE}:shaped" in str(crashed.void_reason)
    assert "it ended with code 3" in str(crashed.void_reason)
    assert whole.metrics == {"before": 1.0}


@dataclass(frozen=True)
class Name:
    """See xp.episode.mixture.TaskName."""

    index: int
    env: str = "x"
    split: str = "train"
    messages: tuple[Message, ...] = ()


def episode_of(mix: EnvironmentMixture, index: int) -> Episode:
    return mix.episode(Name(index))


@pytest.mark.parametrize(
    ("function", "reward", "fault"),
    [("of_a_group", 2.0, "None"), ("ends_of_a_group", None, "it ended with code 2")],
)
def test_a_reward_function_of_a_group_may_set_alarms_and_its_crash_is_named(
    function: str, reward: float | None, fault: str
) -> None:
    config = graded("alarmed", group_reward_fn=f"{MODULE}:{function}")
    with EnvironmentMixture(EpisodeConfig({"x": config}), os.environ) as mix:
        episodes = [episode_of(mix, 1) for _ in range(2)]
        for episode in episodes:
            episode.step("1")
        mix.score_group(episodes).result()
        results = [one.settle() for one in episodes]
    assert [one.reward for one in results] == [reward] * 2
    assert all(fault in str(one.void_reason) for one in results)


def test_a_grader_that_says_so_has_one_process() -> None:
    assert sorted(one.reward or 0.0 for one in played(graded("counts"), [(1, "1")] * 6)) == [
        1.0,
        2.0,
        3.0,
        4.0,
        5.0,
        6.0,
    ]
    assert [one.reward for one in played(graded("keeps_its_loop"), [(1, "1")] * 3)] == [1.0] * 3


def test_each_process_draws_numbers_of_its_own() -> None:
    results = played(graded("draws"), [(1, "1")] * 4)
    assert len({one.reward for one in results}) == 4
    assert len({one.grader["numpy"] for one in results}) == 4


def test_what_a_call_left_behind_does_not_reach_the_next_episode() -> None:
    config = graded("leaves_an_alarm")
    with opened(config) as provider:
        assert [settled(provider, config, text, 1).reward for text in ("1", "1")] == [1.0, 1.0]
        time.sleep(0.5)
        assert settled(provider, config, "1", 1).reward == 1.0
        assert "SIGALRM ended it" in str(settled(provider, config, "late", 1).void_reason)
    config = graded("leaves_its_end")
    with opened(config) as provider:
        assert [settled(provider, config, text, 1).reward for text in ("bomb", "1")] == [1.0, 1.0]


def asks_for_ever() -> None:
    provider = GradedProvider(graded("process_of"), {})
    reward = provider.open(Task("x", "train", 1)).answer("1").reward
    print(int(reward or 0), flush=True)
    time.sleep(600)


def test_no_process_outlives_its_parent() -> None:
    parent = Fork(asks_for_ever, ROOT)
    worker = int(parent.out.readline())
    processes = [one.pid for one in psutil.Process(parent.process.pid).children(recursive=True)]
    assert worker in processes
    parent.send(signal.SIGKILL)
    parent.process.join(DEADLINE_S)
    assert wait_for(lambda: not any(map(is_alive, processes)))
