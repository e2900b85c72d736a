"""A reward function reads what a real server says of a task; no dataset and no prompt holds it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.fake_session import call
from tests.support.ors_server import rules, running
from xp.envs.config import EpisodeConfig
from xp.envs.light_sdk import import_openreward
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult
from xp.lib.load import load_object
from xp.spec.reward_fn import WeightedFnSpec
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

CATALOG = "tests.envs_under_test.catalog"
SEEN = "XP_TEST_SEEN"
"""Variable with the file of what the function saw, in a process of its own."""


def made(function: str, *arguments: object) -> Any:
    """What a function of the catalog's makes; importing it takes every process half a second."""
    import_openreward()
    return load_object(f"{CATALOG}.{function}")(*arguments)


def remember(outcome: EpisodeResult, task: dict[str, Any]) -> float:
    Path(os.environ[SEEN]).write_text(json.dumps(task))
    return outcome.reward or 0.0


def alone(outcome: EpisodeResult) -> float:
    return outcome.reward or 0.0


def row(split: str, index: int) -> TaskRow:
    return TaskRow(f"e/{split}/{index}", "e", Purpose.TRAIN, split, index, "", (), "[]", 1.0)


def played(
    look_alike: str, split: str, index: int, message: str, function: str = "remember"
) -> list[dict[str, Any]]:
    own = (WeightedFnSpec(fn=f"tests.integration.test_reward_metadata:{function}", weight=1.0),)
    server = running(f"{CATALOG}.{look_alike}").server
    member = rules(name="e", target=server.url, allowed_origins=(server.url,), reward_fn=own)
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENREWARD_API_KEY", server.key)
        seen = Path(place) / "seen.json"
        patch.setenv(SEEN, str(seen))
        with EnvironmentMixture(EpisodeConfig({"e": member}), os.environ) as mix:
            episode = mix.episode(row(split, index))
            episode.step(message)
            outcome = episode.settle()
        assert outcome.reward == 1.0, outcome
        return [json.loads(file.read_text()) for file in [seen] if file.exists()]


def test_where_the_server_lists_its_tasks() -> None:
    case = made("whodunit:make_case", 3)
    answer = call("submit_answer", **case.solution)
    (task,) = played("whodunit:WhoDunit", "train", 3, answer)
    assert {key: task[key] for key in ("id", "env", "split", "index")} == {
        "id": "e/train/3",
        "env": "e",
        "split": "train",
        "index": 3,
    }
    assert task["metadata"] == case.model_dump()


def test_where_the_server_only_counts_them() -> None:
    spec = made("answers:_sum", "train", 77)
    (task,) = played(
        "answers:Unsplit", "train", 77, call("answer", answer=str(spec["a"] + spec["b"]))
    )
    assert task["metadata"] == spec


def test_a_function_that_does_not_want_it_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from xp.envs.openreward import OpenRewardProvider

    monkeypatch.setattr(
        OpenRewardProvider, "tasks", lambda *_: pytest.fail("asked for the task's description")
    )
    assert (
        played(
            "whodunit:WhoDunit",
            "train",
            4,
            call("submit_answer", **made("whodunit:make_case", 4).solution),
            "alone",
        )
        == []
    )
