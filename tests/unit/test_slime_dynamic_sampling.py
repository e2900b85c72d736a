"""Dynamic sampling under Slime: the metrics of a step are of all episodes that were played, as on SkyRL."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.recorders import Closing
from tests.support.scripts import NO_RETRY, FakeMix
from tests.support.tiny import tokenizer_and_model
from tests.unit.slime_config import worker_config
from xp.backends.slime.worker import rollout_process
from xp.backends.slime.worker.advantages import has_variance
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
from xp.backends.slime.worker.rollout_process import Worker, write_played
from xp.backends.slime.worker.steps import half_of, log_rollout
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus

FILTERS = "slime.rollout.filter_hub.base_types"


@dataclass
class DynamicFilterOutput:
    """Slime's answer of a filter."""

    keep: bool
    reason: str | None = None


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    filters: Any = ModuleType(FILTERS)
    filters.DynamicFilterOutput = DynamicFilterOutput
    monkeypatch.setitem(sys.modules, FILTERS, filters)
    for name in ("slime.rollout.filter_hub", "slime.rollout", "slime"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    found = SimpleNamespace(
        dynamic_sampling_filter_path="x", debug_rollout_only=False, eval_interval=None
    )
    setattr(found, WORKER_ATTRIBUTE, f"{tmp_path}/worker.json")
    own = Worker(worker_config(tmp_path, 1), FakeMix(NO_RETRY), Closing())  # type: ignore[arg-type]
    own.chat(tokenizer_and_model()[0])
    monkeypatch.setitem(rollout_process._workers, f"{tmp_path}/worker.json", own)
    return found


def group(number: int, *rewards: float) -> list[Any]:
    samples = []
    for index, reward in enumerate(rewards, start=4 * number):
        outcome = EpisodeResult(EpisodeStatus.FINISHED, reward, (reward,), 1, 1, 0)
        samples.append(
            SimpleNamespace(index=index, metadata={}, reward=reward, remove_sample=False)
        )
        write_played(samples[-1].metadata, EpisodeFacts("fake", f"fake/train/{number}", outcome, 3))
    return samples


def test_a_penalty_for_length_is_no_variance(args: Any) -> None:
    samples = group(0, 1.0, 1.0)
    samples[0].reward = 0.5
    outcome = EpisodeResult(EpisodeStatus.FINISHED, 0.5, (1.0,), 1, 1, 0, unpenalized=1.0)
    write_played(samples[0].metadata, EpisodeFacts("fake", "fake/train/0", outcome, 3))
    assert not has_variance(args, samples).keep


def test_left_out_groups_are_only_in_their_steps_rewards(args: Any, tmp_path: Path) -> None:
    config = worker_config(tmp_path, 1)
    for step, dropped in enumerate((0.0, 1.0)):
        played = [
            group(0, 1.0, 0.0, 0.0, 0.0),
            group(1, *[dropped] * 4),
            group(2, 1.0, 1.0, 1.0, 0.0),
        ]
        kept = [one for one in played if has_variance(args, one).keep]
        assert kept == [played[0], played[2]]
        samples = [sample for one in kept for sample in one]
        assert log_rollout(step, args, samples, {"rollout/dynamic_filter/drop_zero_std": 1}, 1.0)
        found = json.loads(half_of(config, step).read_text())["metrics"]
        assert found["episodes/num"] == 12
        assert found["reward/avg_raw_reward"] == (4 + 4 * dropped) / 12
        assert found["reward/groups_without_variance"] == pytest.approx(1 / 3)
        assert found["reward/avg_pass_at_4"] == pytest.approx((2 + dropped) / 3)
        assert found["episodes/groups_left_out"] == 1
