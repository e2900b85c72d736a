"""Records of evaluations as a run's stages leave them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.episode.evaluation import RECORD, Estimate, evaluation_record
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.execution.held_out import HeldOutResult

Rewards = Mapping[str, Sequence[float | None]]


def record_of(
    rewards: Rewards,
    name: str = "after",
    *,
    hashes: Mapping[str, str] | None = None,
    scoring: Mapping[str, Mapping[str, Any]] | None = None,
    threshold: float = 1.0,
    **more: Any,
) -> dict[str, Any]:
    """The record of a model: task -> rewards of its episodes (None: void); `more` replaces keys of the record."""
    played = [
        EpisodeFacts(task.split("/")[0], task, _result(one), 3)
        for task, several in rewards.items()
        for one in several
    ]
    hashes = hashes or {task: f"digest of {task}" for task in rewards}
    scoring = scoring or {env: {} for env in dict.fromkeys(one.env for one in played)}
    about = {
        "id": name,
        "env": "+".join(scoring),
        "model": {"name": name},
        "run": "r",
        "task_set": "t",
    }
    about["playing"] = {"pass_threshold": threshold}
    return evaluation_record(about, played, hashes, scoring, len(played)) | more


def leave_evaluation(
    run: Path,
    attempt: int = 1,
    *,
    before: Rewards | None = None,
    after: Rewards | None = None,
    **more: Any,
) -> None:
    """Writes the records of a run's attempt."""
    for name, rewards in (("before", before), ("after", after)):
        if rewards is not None:
            leave_record(run, name, record_of(rewards, name, **more), attempt)


def leave_record(run: Path, name: str, record: Mapping[str, Any], attempt: int = 1) -> None:
    file = run / f"attempt_{attempt}/evaluate" / name / RECORD
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def _result(reward: float | None) -> EpisodeResult:
    status = EpisodeStatus.VOID if reward is None else EpisodeStatus.FINISHED
    return EpisodeResult(
        status,
        reward,
        () if reward is None else (reward,),
        2,
        2,
        0,
    )


def held_out_result(reward: float, stderr: float | None = None, **more: Any) -> HeldOutResult:
    """The result of one episode; `more` replaces fields."""
    num_tasks = more.pop("num_tasks", 1)
    values: dict[str, Any] = {
        "num_tasks": num_tasks,
        "num_episodes": 1,
        "num_void": 0,
        "reward": Estimate(value=reward, stderr=stderr, num_tasks=num_tasks),
        "passes": Estimate(value=0.0, stderr=None, num_tasks=num_tasks),
        "pass_threshold": 1.0,
        "env_pass_share": None,
    }
    return HeldOutResult(**(values | more))


def evaluated(stage: Path) -> dict[str, dict[str, Any]]:
    """Model -> its record in an evaluate stage's directory, without times."""
    found = {}
    for file in sorted(stage.glob(f"*/{RECORD}"), key=lambda file: file.parent.name, reverse=True):
        value = json.loads(file.read_text())
        for figures in (value["summary"], *value["environments"].values()):
            del figures["seconds_mean"]
        found[file.parent.name] = {
            key: one for key, one in value.items() if key not in ("started", "ended")
        }
    return found
