"""A step with too many void episodes stops the run; below that they are metered and left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import World, played
from tests.support.sections import PLACES, run_spec
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.spec.training import OnSymptom


def outcomes(world: World, num: int, num_void: int) -> list[EpisodeFacts]:
    facts = []
    for number in range(num):
        if number < num_void:
            world.proxy.inject("/call", faults.reset(executed=True))
        facts.append(EpisodeFacts("fake", f"fake/train/{number}", played(world.episode()), 10))
    return facts


def test_too_many_void_episodes_stop_the_run_with_their_code(world: World, tmp_path: Path) -> None:
    steps = pytest.importorskip("xp.backends.trl.worker.steps", reason="TRL is not installed")
    from xp.episode.metrics_file import MetricsFile

    limits = {
        "training__max_void_fraction": 0.2,
        "training__group_size": 2,
        "training__on_symptom": OnSymptom.OFF,
    }
    config: Any = SimpleNamespace(
        spec=run_spec(**limits), places=PLACES, num_steps=1, updates_per_rollout=1
    )
    log = steps.TRLStepLog(config, MetricsFile(tmp_path / "metrics.jsonl", "train", 1))
    log.episodes(outcomes(world, 10, 2), 1.0)
    with pytest.raises(XpError, match="ResponseLost") as caught:
        log.episodes(outcomes(world, 10, 3), 1.0)
    assert caught.value.code is ExitCode.UNHEALTHY
    log.finish()


def test_a_reward_is_none_exactly_when_the_episode_is_void(world: World) -> None:
    found: list[EpisodeResult] = [one.outcome for one in outcomes(world, 6, 3)]
    assert [outcome.reward is None for outcome in found] == [
        outcome.status is EpisodeStatus.VOID for outcome in found
    ]
