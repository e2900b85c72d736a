"""What was prepared is what is played, or the session's own prompt is, on real servers and processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.cases import few
from tests.support.ors_server import rules, running
from tests.support.sections import chat_model, member_of, prepare_of, replace, selection
from tests.support.tiny import tokenizer_and_model
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import trajectory
from xp.errors import XpError
from xp.spec.env import PromptSource
from xp.tasks.load import load_tasks
from xp.tasks.prepare import prepare
from xp.tasks.row import TaskRow
from xp.worker.played import live_prompt

pytestmark = pytest.mark.integration
MODULE = "tests.envs_under_test"
DRAWN = f"{MODULE}.drawn:Drawn"
ORS = "an ORS environment that draws by chance"
OPENENV = "an OpenEnv environment whose reset ignores its seed"
SENTENCE = "the environment's prompt is not the prepared one"
SYSTEM = "Call one of: {tool_names}."


def drawn() -> EnvConfig:
    """An environment of a server that is shared, since it draws for each session."""
    url = running(DRAWN).server.url
    return rules(target=url, allowed_origins=(url,), system_prompt=SYSTEM)


ENVIRONMENTS = {
    OPENENV: rules(
        provider="openenv", serve=f"{MODULE}.openenv_counter:Unseeded", rows=f"{MODULE}.rows:counts"
    ),
    "a grader whose first message is drawn": rules(
        provider="local",
        grader="tests.graders_under_test.drawn_rows:Dealt",
        rows="tests.graders_under_test.drawn_rows:rows",
    ),
    "a provider of the user's own": rules(name="x", provider="tests.envs_under_test.silent:Silent"),
}
FIRST = {OPENENV: 1}
"""Number of tasks whose prompt has something drawn, where it is not that of all."""


def prepared(env: EnvConfig, root: Path) -> list[TaskRow]:
    """The training tasks of an environment, as a training loads them."""
    split = "other" if "Silent" in env.provider else "train"
    config = prepare_of({env.name: member_of(env, selection((split,)))})
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


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", running(DRAWN).server.key)


@pytest.mark.parametrize("name", few([ORS, *reversed(ENVIRONMENTS)], 3))
def test_another_prompt_makes_void_and_a_live_one_is_played(name: str, tmp_path: Path) -> None:
    env = ENVIRONMENTS.get(name) or drawn()
    rows = prepared(env, tmp_path)[: FIRST.get(name, 4)]
    assert rows
    void = episodes(env, rows)
    for episode, row in zip(void, rows, strict=True):
        outcome = episode.settle()
        assert outcome.status == EpisodeStatus.VOID
        assert outcome.reward is None
        assert f"PromptDiffers: {SENTENCE}: message " in str(outcome.void_reason)
        assert "expected '" in str(outcome.void_reason)
        assert "env.prompt=live" in str(outcome.void_reason)
        assert list(episode.opening) == list(row.messages)
    live = replace(env, prompt=PromptSource.LIVE)
    for episode, row in zip(episodes(live, rows), rows, strict=True):
        assert episode.settle().status is not EpisodeStatus.VOID
        record = trajectory(
            episode,
            run="r",
            phase="train",
            step=0,
            sample=0,
            tools=row.tools,
        )
        assert (
            list(record.messages[: len(row.messages)])
            == list(episode.opening)
            != list(row.messages)
        )


def test_newly_drawn_rows_end_the_stage_unless_prompts_are_live(
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


def test_a_live_prompts_length_is_checked_at_its_opening(tmp_path: Path) -> None:
    live = replace(drawn(), prompt=PromptSource.LIVE)
    row = prepared(live, tmp_path)[0]
    chat = ChatTokens(tokenizer_and_model()[0], chat_model())
    with EnvironmentMixture(EpisodeConfig({live.name: live}), os.environ) as mix:
        episode = mix.episode(row)
        long = mix.episode(row)
        ids = live_prompt(episode, row.tools, chat, 500)
        assert (
            ids == chat.prompt(episode.opening, row.tools) != chat.prompt(row.messages, row.tools)
        )
        episode.settle()
        assert live_prompt(long, row.tools, chat, 5) is None
        assert "tokens, more than training.max_prompt_tokens=5" in str(long.settle().void_reason)
