"""Pictures on TRL where rows are not one episode each, or are of older weights: rewritten prompts, sampling ahead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tests.support.cases import few
from tests.support.fake_session import RULES, FakeSession
from tests.support.picture_trainings import SMALL, TWO_TURNS, steps_of
from tests.support.sections import replace as replaced_in
from tests.support.stages_here import stages_here as stages_here
from tests.support.tiny_vision import IMAGES, message, picture, vision_model
from tests.support.trl_played import training
from xp.__main__ import main
from xp.composition import compose
from xp.envs import picture_store
from xp.envs.base import NEW_PROMPT, TakenResult, Task, ToolResult
from xp.envs.picture_store import PictureStore
from xp.episode.episode import Episode
from xp.episode.metrics_file import read_metrics
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.tasks import model_chat

TOLERANCE = 1e-5
SHOWN = (("a", "b"), ("", "c"), ("", ""))
"""Of each task, the picture of the prompt, and that of the prompt which the program writes after the first answer."""


class Program(FakeSession):
    """A program that goes on with a prompt of its own, so that its episode has two rows."""

    takes_answer = True

    def __init__(self, store: PictureStore, name: str, reward: float) -> None:
        super().__init__(lambda *_: ToolResult(""))
        self._shown = [picture(store, name)] if name else []
        self._reward = reward
        self._num_answers = 0

    def take(self, _: Any) -> TakenResult:
        self._num_answers += 1
        if self._num_answers == 2:
            return TakenResult("", self._reward, finished=True)
        prompt = message("user", *self._shown, "And now?")
        return TakenResult("", messages=(prompt,), follows=NEW_PROMPT)


class Programs:
    """Their environment."""

    def __init__(self, store: PictureStore) -> None:
        self._store = store
        self._num_episodes = 0

    def rows(self) -> list[TaskRow]:
        rows = []
        for index, (name, _) in enumerate(SHOWN):
            seen = [picture(self._store, name)] if name else []
            prompt = (message("user", *seen, "How many?"),)
            task = f"fake/train/{index}"
            rows.append(
                TaskRow(
                    task,
                    "fake",
                    Purpose.TRAIN,
                    "train",
                    index,
                    "h",
                    prompt,
                    "[]",
                    1.0,
                )
            )
        return rows

    def episode(self, row: TaskRow) -> Episode:
        self._num_episodes += 1
        reward = float(self._num_episodes % 2)
        rules = replaced_in(RULES, images=IMAGES, provider="harness")
        second = SHOWN[row.index][1]
        task = Task("fake", "train", row.index)
        return Episode(task, lambda: Program(self._store, second, reward), rules)

    def scores_groups(self, env: str) -> bool:
        del env
        return False

    def max_sessions(self) -> int:
        return 64


def trained(model: Path, directory: Path) -> Mapping[str, Any]:
    """The metrics of one step of xp's trainer on episodes of such programs."""
    chosen = ("model=hf", f"model.path={model}", "model.dtype=float32", "model.images=true")
    spec = compose([*TWO_TURNS, *SMALL, *chosen, "training.num_steps=1"])
    store = PictureStore.of_environ(os.environ)
    programs = Programs(store)
    rows = programs.rows()
    chat = model_chat(str(model), spec, store=store)
    with training(
        directory,
        spec,
        programs,
        rows,
        rows,
        model=model,
        chat=chat,
    ) as parts:
        trainer, _, config = parts
        trainer.train()
    (line,) = read_metrics(Path(config.places.metrics), "train")
    return line


@pytest.mark.parametrize("family", few(["qwen2_vl", "qwen3_vl"], 1))
def test_each_row_of_an_episode_has_its_own_pictures(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of no, one and two pictures are 24 of 12 episodes, which the trainer cuts into parts of a micro-batch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    model = vision_model(family, tmp_path / "model", spread=0.08)
    line = trained(model, tmp_path)
    assert line["episodes/void"] == 0.0
    assert line["pictures/read"] == pytest.approx(2 / 3)  # of replies; the prompts are the tasks'
    assert line["training/logprob_gap"] < TOLERANCE
    assert line["training/grad_norm"] > 0


@pytest.mark.usefixtures("stages_here")
def test_episodes_of_older_weights_are_trained_with_their_own_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate is so small that weights of the step before are the same: the gap is of the pixels alone."""
    monkeypatch.chdir(tmp_path)
    model = vision_model("qwen2_vl", tmp_path / "model", spread=0.08)
    words = (
        *(*TWO_TURNS, *SMALL, "model=hf", f"model.path={model}", "model.dtype=float32"),
        *("model.images=true", "training.max_staleness=1", "training.num_steps=2"),
        *("algorithm.importance_correction=token_truncate", "training.learning_rate=1e-9"),
    )
    assert main([*words, f"outputs={tmp_path}/outputs"]) == 0
    steps = steps_of(tmp_path / "outputs")
    assert [step["training/staleness"] for step in steps] == [0.0, 1.0]
    for step in steps:
        assert step["episodes/void"] == 0.0
        assert step["pictures/read"] > 1.0
        assert step["training/logprob_gap"] < TOLERANCE
