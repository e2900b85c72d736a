"""Curricula in SkyRL's own loop, loader and checkpoints: the tasks that the table of past rewards draws."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.episode_facts import played
from tests.support.scripts import ROW
from tests.support.sections import replace
from tests.support.skyrl_trainer import without_updates
from tests.support.tiny import tokenizer_and_model
from tests.trainers.skyrl_parts import native, train_config
from xp.backends.skyrl.worker.train import write_view
from xp.episode.metrics import EpisodeFacts
from xp.spec import RunSpec
from xp.tasks.curriculum import Curriculum
from xp.worker.tasks import training_view

PROMPTS = 4
SIZE = 2
STEPS = 6
ENV = "whodunit_mini"
ROWS = [replace(ROW, env=ENV, task_id=f"{ENV}/train/{index}", index=index) for index in range(14)]
WORDS = (
    f"training.prompts_per_step={PROMPTS}",
    f"training.group_size={SIZE}",
    "training.micro_batch_size=2",
    "training.warmup_updates=0",
    "training.checkpoint_every=1",
    "evaluation.every=null",
    "env.train.curriculum=pass_rate",
    "env.train.curriculum_exploration=0.5",
    f"training.num_steps={STEPS}",
)


def reward(index: int, number: int) -> float:
    """Tasks of three kinds: never passed, half passed, always passed."""
    return (0.0, float(number % 2), 1.0)[index % 3]


def facts(indices: Sequence[int]) -> list[EpisodeFacts]:
    return [
        played(f"{ENV}/train/{index}", reward(index, number), env=ENV)
        for index in indices
        for number in range(SIZE)
    ]


def simulated(spec: RunSpec) -> tuple[list[list[int]], list[dict[str, float]]]:
    """Tasks of each step by their index, and the metrics."""
    curriculum = Curriculum(spec, ROWS, STEPS)
    steps: list[list[int]] = []
    metrics = []
    for step in range(STEPS):
        curriculum.begin(step)
        steps.append([row.index for row in curriculum.tasks(step)])
        metrics.append(curriculum.settle(step, facts(steps[-1])))
    return steps, metrics


class Player:
    """A generator that plays nothing: the rewards are those of the tasks."""

    chat = SimpleNamespace(end_ids=(0,))

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        del disable_tqdm
        indices = [extras["index"] for extras in input_batch["env_extras"]]
        assert indices[::SIZE] == indices[1::SIZE]
        self.steps.append(indices[::SIZE])
        rewards = [one.outcome.reward for one in facts(self.steps[-1])]
        return {
            "prompt_token_ids": [[index] for index in indices],
            "response_ids": [[1, 2]] * len(indices),
            "rewards": [[0.0, reward] for reward in rewards],
            "loss_masks": [[1, 1]] * len(indices),
            "stop_reasons": ["stop"] * len(indices),
            "rollout_logprobs": [[0.0, 0.0]] * len(indices),
            "rollout_metrics": {},
        }

    def played(self, input_batch: Any) -> list[Any]:
        del input_batch
        return [SimpleNamespace(played=lambda one=one: one) for one in facts(self.steps[-1])]


class Dispatch:
    """SkyRL's workers, which do nothing."""

    async def save_weights_for_sampler(self) -> None:
        await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        values = {"get_lcm_dp_size": 2, "get_timing_metrics": {}, "get_node_ids": []}
        return lambda *_, **__: values.get(name)


class Log:
    """A tracker that keeps what the trainer logs."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        del step, commit
        drawn = {name: value for name, value in data.items() if name.startswith("curriculum/")}
        if drawn:
            self.lines.append(drawn)


def trained(root: Path, num_steps: int, *words: str) -> tuple[list[list[int]], list[Any]]:
    """Trains with SkyRL's loop up to a step, from its last checkpoint if there is one."""
    from skyrl.train.trainer import RayPPOTrainer

    from xp.backends.skyrl.worker.experiment import XpTraining
    from xp.backends.skyrl.worker.trainer import XpTrainer

    config = train_config(*WORDS, *words)
    cfg = native(config, root)
    cfg.trainer.max_training_steps = num_steps
    view = Path(cfg.data.train_data[0])
    view.parent.mkdir(parents=True, exist_ok=True)
    write_view(training_view(config, ROWS, view), view)
    experiment = object.__new__(XpTraining)
    experiment.cfg = cfg
    experiment._config = config
    log = Log()
    player = Player()
    trainer = without_updates(XpTrainer)(
        config,
        None,
        None,
        cfg=cfg,
        tracker=log,
        generator=player,
        tokenizer=tokenizer_and_model()[0],
        train_dataset=experiment.get_train_dataset(),
        inference_engine_client=SimpleNamespace(sleep=lambda: asyncio.sleep(0)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RayPPOTrainer, "build_models", lambda self, *_: setattr(self, "dispatch", Dispatch())
        )
        trainer.build_models(None, None, None)
    asyncio.run(trainer.train())
    assert trainer.global_step == num_steps
    return player.steps, log.lines


def test_each_step_has_the_tasks_that_the_steps_before_draw(tmp_path: Path) -> None:
    steps, metrics = simulated(train_config(*WORDS).spec)
    assert len({index for step in steps for index in step}) < PROMPTS * STEPS
    assert trained(tmp_path, STEPS) == (steps, metrics)


def test_a_resumed_training_draws_what_the_unbroken_one_draws(tmp_path: Path) -> None:
    steps, metrics = simulated(train_config(*WORDS).spec)
    begun = trained(tmp_path, 3)
    resumed = trained(tmp_path, STEPS)
    assert begun == (steps[:3], metrics[:3])
    assert resumed == (steps[3:], metrics[3:])
