"""Images of a real ORS server: no model is given a placeholder in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fake_session import call
from tests.support.modules import alone
from tests.support.ors_server import rules
from xp.__main__ import main
from xp.envs.base import Task
from xp.envs.load import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import ExitCode

SAID = "an image (image/png): xp gives a model text alone"

pytestmark = pytest.mark.integration


def test_an_image_from_a_tool_makes_the_episode_void() -> None:
    config = rules(serve="tests.envs_under_test.pictured:Gallery")
    task = Task("x", "train", 0)
    provider = load_provider(config, os.environ)

    def play(*tools: str) -> EpisodeResult:
        episode = Episode(task, lambda: provider.open(task), config)
        for tool in tools:
            episode.step(call(tool))
        return episode.settle()

    outcome = play("look", "answer")
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert SAID in str(outcome.void_reason)
    assert play("answer").reward == 1.0
    provider.close()


def test_a_prompt_with_an_image_is_refused_while_tasks_are_prepared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = alone("envs_under_test/pictured", tmp_path, monkeypatch)
    words = [
        "prepare",
        "env=openreward",
        f"env.serve={module}:Painted",
        f"outputs={tmp_path / 'outputs'}",
    ]
    assert main(words) == ExitCode.TASKS
    assert SAID in capfd.readouterr().err
    assert not list(tmp_path.glob("outputs/tasks/*/tasks.parquet"))
