"""What was prepared is what is played, or the session's own prompt is, on real servers and processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ors_server import rules
from tests.tiny import tokenizer_and_model
from xp.envs.config import Chat, EnvConfig, EpisodeConfig, PromptSource
from xp.episode.episode import Episode
from xp.episode.metrics import Played, check_health
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import read_trajectories, trajectory
from xp.errors import ExitCode, XpError
from xp.tasks.config import MemberConfig, PrepareConfig, Selection
from xp.tasks.load import load_tasks
from xp.tasks.prepare import prepare
from xp.tasks.row import TaskRow, read_rows
from xp.worker.played import live_prompt

pytestmark = pytest.mark.integration
MODULE = "tests.envs_under_test"
SENTENCE = "the environment's prompt is not the prepared one"
FAILING = f"the environment is failing (PromptDiffers: {SENTENCE}: message 1, content: expected "
SYSTEM = "Call one of: {tool_names}."


def served(name: str, **changes: object) -> EnvConfig:
    return rules(serve=f"{MODULE}.drawn:{name}", system_prompt=SYSTEM, **changes)


ENVIRONMENTS = {
    "an ORS environment that draws by chance": served("Drawn"),
    "an ORS environment that tells the time": served("Dated"),
    "an ORS environment that shuffles by hash()": served("Shuffled"),
    "an OpenEnv environment whose reset ignores its seed": rules(
        provider="openenv", serve=f"{MODULE}.openenv_counter:Unseeded", rows=f"{MODULE}.openenv_counter:rows"
    ),
    "a grader whose first message is drawn": rules(
        provider="local", grader=f"{MODULE}.drawn:Dealt", rows=f"{MODULE}.drawn:rows"
    ),
    "a provider of the user's own": rules(name="x", provider="tests.unit.test_env_check:Silent"),
}
FIRST = {"an OpenEnv environment whose reset ignores its seed": 1}
"""Number of tasks whose prompt has something drawn, where it is not that of all."""


def prepared(env: EnvConfig, root: Path) -> list[TaskRow]:
    """The training tasks of an environment, as a training loads them."""
    split = "other" if "Silent" in env.provider else "train"
    config = PrepareConfig({env.name: MemberConfig(env, Selection((split,)), None, 1.0)}, 0.0, 8)
    made = prepare(config, os.environ, root)
    (root / "prepare.json").write_text(config.to_json())
    return load_tasks(made.path, root, "train")


def episodes(env: EnvConfig, rows: Sequence[TaskRow]) -> list[Episode]:
    """An episode on each task, after one turn."""
    with EnvironmentMixture(EpisodeConfig({env.name: env}), os.environ) as mix:
        played = [mix.episode(row) for row in rows]
        for episode in played:
            episode.step("7")
            episode.settle()
    return played


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_episode_with_another_prompt_than_the_prepared_one_is_void_and_a_live_one_is_played(
    name: str, tmp_path: Path
) -> None:
    env = ENVIRONMENTS[name]
    rows = prepared(env, tmp_path)[: FIRST.get(name, 4)]
    for episode, row in zip(episodes(env, rows), rows, strict=True):
        outcome = episode.settle()
        assert (outcome.status, outcome.reward) == (EpisodeStatus.VOID, None)
        assert f"PromptDiffers: {SENTENCE}: message " in str(outcome.void_reason)
        assert "expected '" in str(outcome.void_reason)
        assert "env.prompt=live" in str(outcome.void_reason)
        assert list(episode.opening) == list(row.messages)
    live = replace(env, prompt=PromptSource.LIVE)
    for episode, row in zip(episodes(live, rows), rows, strict=True):
        assert episode.settle().status is not EpisodeStatus.VOID
        record = trajectory(episode, run="r", phase="train", step=0, sample=0, tools=row.tools)
        assert list(record.messages[: len(row.messages)]) == list(episode.opening) != list(row.messages)


def test_a_prompt_that_depends_on_its_task_alone_is_the_prepared_one_in_every_process(tmp_path: Path) -> None:
    """The system prompt names the tools, and the tasks are prepared from their descriptions, not from their numbers."""
    env = served("Steady")
    rows = prepared(env, tmp_path)
    assert {episode.settle().status for episode in episodes(env, rows)} == {EpisodeStatus.STOPPED}


def test_a_stage_ends_with_the_sentence_one_example_and_the_way_out(tmp_path: Path) -> None:
    env = served("Drawn")
    rows = prepared(env, tmp_path)
    played = [
        Played(env.name, row.task_id, one.settle(), 0) for row, one in zip(rows, episodes(env, rows), strict=True)
    ]
    with pytest.raises(XpError) as raised:
        check_health(played, 0.1)
    assert raised.value.code is ExitCode.UNHEALTHY
    assert str(raised.value).count(SENTENCE) == str(raised.value).count("set env.prompt=live") == 1
    assert len(str(raised.value)) < 600


def test_rows_that_are_drawn_anew_end_the_stage_and_are_loaded_where_prompts_are_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are compared before the first episode, since they are read in this process."""
    (tmp_path / "dice.py").write_text(
        "import random\n"
        "def rows():\n"
        "    return {'train': [{'prompt': str(random.random())} for _ in range(9)]}\n"
        "def grade(answer, row):\n"
        "    return 0.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    env = rules(provider="local", grader="dice:grade", rows="dice:rows")
    with pytest.raises(XpError, match="has other tasks than those that were prepared"):
        prepared(env, tmp_path)
    live = replace(env, prompt=PromptSource.LIVE)
    rows = prepared(live, tmp_path)
    for episode, row in zip(episodes(live, rows), rows, strict=True):
        assert list(episode.opening) != list(row.messages)


@pytest.mark.parametrize(("limit", "reason"), [(500, None), (5, "tokens, more than training.max_prompt_tokens=5")])
def test_the_length_of_a_live_prompt_is_checked_when_its_session_is_open(
    limit: int, reason: str | None, tmp_path: Path
) -> None:
    live = served("Drawn", prompt=PromptSource.LIVE)
    row = prepared(live, tmp_path)[0]
    chat = ChatTokens(tokenizer_and_model()[0], Chat())
    with EnvironmentMixture(EpisodeConfig({live.name: live}), os.environ) as mix:
        episode = mix.episode(row)
        ids = live_prompt(episode, row.tools, chat, limit)
        if reason is None:
            assert ids == chat.prompt(episode.opening, row.tools) != chat.prompt(row.messages, row.tools)
            episode.settle()
        else:
            assert ids is None
            assert reason in str(episode.settle().void_reason)


def test_a_training_on_shuffled_options_ends_with_the_sentence_and_trains_where_prompts_are_live(
    tmp_path: Path,
) -> None:
    def train(*words: str) -> subprocess.CompletedProcess[str]:
        small = [
            "training.num_steps=1",
            "training.prompts_per_step=2",
            "training.group_size=2",
            "training.micro_batch_size=4",
            "env.held_out=null",
        ]
        command = ["-m", "xp", "env=openreward", f"env.serve={MODULE}.drawn:Shuffled", *small, f"outputs={tmp_path}"]
        return subprocess.run([sys.executable, *command, *words], capture_output=True, text=True, check=False)

    refused = train()
    assert refused.returncode == ExitCode.UNHEALTHY, refused.stdout + refused.stderr
    assert f"4 of 4 episodes are void, more than training.max_void_fraction=0.2: {FAILING}" in refused.stderr
    assert "set env.prompt=live" in refused.stderr
    shutil.rmtree(tmp_path / "runs")
    trained = train("env.prompt=live")
    assert trained.returncode == ExitCode.OK, trained.stdout + trained.stderr
    (file,) = (tmp_path / "runs").glob("*/attempt_1/train/trajectories/train*.jsonl")
    played = {one["messages"][0]["content"] for one in read_trajectories(file).records}
    (table,) = (tmp_path / "tasks").glob("*/tasks.parquet")
    assert len(played) == 2
    assert not played & {row.messages[0]["content"] for row in read_rows(table)}
