"""Faults, bounds and the line of a step in Slime's real rollout."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import FakeSession, call
from tests.support.scripts import NO_RETRY, ROW, FakeMix
from tests.support.task_set import leave_manifest
from tests.support.tiny import turn_ids
from tests.trainers.slime_play import (
    Kept,
    args,
    arguments,
    play_group,
    play_script,
    says_script,
    script_named,
)
from tests.trainers.slime_setup import (
    engine,
    group_of,
    needs_slime,
    put_worker,
    worker_config,
)
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode, XpError

__all__ = ["args", "arguments"]
pytestmark = needs_slime


def test_a_lost_engine_ends_the_run_and_its_sessions_are_closed(
    args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[FakeSession] = []
    monkeypatch.setattr(FakeSession, "close", lambda session: closed.append(session))
    put_worker(args, worker_config(args.xp_root), FakeMix(NO_RETRY), Kept())
    with engine(args, lambda _: []) as server:
        server.faults.append(503)
        with pytest.raises(XpError, match="no engine answered: 503") as ended:
            play_group(args, group_of(ROW, 1))
    assert ended.value.code == ExitCode.ENGINE
    assert len(closed) == 1


def test_a_turn_that_takes_too_long_is_a_lost_engine(
    args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xp.backends.slime.worker import engine as turns

    monkeypatch.setattr(turns, "TURN_S", 0.5)
    put_worker(args, worker_config(args.xp_root), FakeMix(NO_RETRY), Kept())
    over = threading.Event()

    def hang(_: Any) -> list[int]:
        over.wait(DEADLINE_S)
        return []

    with engine(args, hang):
        with pytest.raises(XpError, match="a turn took longer than") as ended:
            play_group(args, group_of(ROW, 1))
        over.set()
    assert ended.value.code == ExitCode.ENGINE


def test_an_aborted_episode_has_no_reward_and_is_played_again(args: Any) -> None:
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.types import Sample

    mix = FakeMix(NO_RETRY)
    kept = Kept()
    put_worker(args, worker_config(args.xp_root), mix, kept)
    with engine(args) as server:
        server.aborted.set()
        (sample,) = play_group(args, group_of(ROW, 1))
        assert sample.status is Sample.Status.ABORTED
        assert sample.reward is None
        assert kept.records == []
        server.aborted.clear()
        GenerateState(args).reset()
        server.policy._says = lambda _: turn_ids(call("win"))  # type: ignore[attr-defined]
        (again,) = play_group(args, [sample])
    assert again.status == Sample.Status.COMPLETED
    assert again.reward == 1.0
    assert len(again.loss_mask) == again.response_length


def test_a_failing_environment_stops_dynamic_sampling_instead_of_asking_for_ever(args: Any) -> None:
    from xp.backends.slime.worker.advantages import has_variance

    outage = script_named("meets an outage")
    group, _, _ = play_script(args, outage, size=4)
    assert has_variance(args, group).keep is False
    with engine(args, says_script(outage)):
        again = play_group(args, group_of(ROW, 4, 1))
    with pytest.raises(XpError, match="the environment is failing") as caught:
        has_variance(args, again)
    assert caught.value.code is ExitCode.UNHEALTHY


def test_too_many_void_episodes_stop_the_run_before_training(args: Any) -> None:
    from xp.backends.slime.worker.steps import log_rollout

    samples, _, _ = play_script(args, script_named("meets an outage"), size=4)
    args.debug_rollout_only = False
    with pytest.raises(XpError, match="4 of 4 episodes are void") as caught:
        log_rollout(0, args, samples, None, 1.0)
    assert caught.value.code is ExitCode.UNHEALTHY
    assert not list(args.xp_root.rglob("steps/*.json"))


def test_the_rollouts_half_of_a_step_is_there_before_training_begins(args: Any) -> None:
    from xp.backends.slime.worker.steps import log_rollout

    samples, _, _ = play_script(args, script_named("scores on the way"), size=4)
    args.debug_rollout_only = False
    assert (
        log_rollout(
            1,
            args,
            samples,
            {"rollout/dynamic_filter/drop_void": 2},
            1.5,
        )
        is True
    )
    half = json.loads(next(args.xp_root.rglob("steps/1.json")).read_text())
    assert half["metrics"]["reward/avg_raw_reward"] == pytest.approx(1.2)
    assert half["metrics"]["environment/turns"] == 4.0
    assert half["metrics"]["time/rollout_s"] == 1.5
    assert half["metrics"]["episodes/tokens"] == sum(samples[0].loss_mask)


def test_an_evaluation_while_training_is_its_own_line(args: Any) -> None:
    from xp.backends.slime.worker.steps import log_evaluation, log_rollout

    closed: list[int] = []

    class Closing(Kept):
        def close(self) -> None:
            closed.append(len(self.records))

    samples, _, _ = play_script(args, script_named("wins at once"), size=4)
    leave_manifest(Path(args.xp_root, "tasks/t"))
    put_worker(
        args,
        worker_config(args.xp_root, every=2),
        FakeMix(NO_RETRY),
        Closing(),
    )
    args.debug_rollout_only = False
    log_rollout(1, args, samples, None, 1.0)
    assert closed == []
    assert (
        log_evaluation(
            1,
            args,
            {"held_out": {"samples": samples}},
            None,
        )
        is True
    )
    assert closed == [0]
    (line,) = map(json.loads, (args.xp_root / "runs/r/metrics.jsonl").read_text().splitlines())
    assert line["stage"] == "evaluate_during"
    assert line["step"] == 2
    assert line["evaluation/during/reward/avg_raw_reward"] == 1.0
