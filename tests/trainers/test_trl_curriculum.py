"""Curricula on the real TRL trainer: which tasks are played, and that a resumed training repeats every bit."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import RULES, FakeSession, steady, with_limits
from tests.support.scripts import FakeMix
from tests.support.sections import replace
from tests.support.trl_played import paid, training
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.worker.checkpoints import latest_checkpoint
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.rollout import decide_together
from xp.composition import compose
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import Task
from xp.episode.episode import Episode
from xp.tasks.curriculum import FILE, CurriculumState, curriculum_of
from xp.tasks.schedule import schedule

STEPS = 6
STOP = 2
ENV = "whodunit_mini"
TASKS = [replace(row, env=ENV) for row in ROWS[:10]]
RULES_HERE = replace(with_limits(RULES, retries_per_episode=0), provider="local", max_turns=1)
OVERRIDES = (
    *(
        f"training.num_steps={STEPS}",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
        "training.learning_rate=0.01",
        "training.warmup_updates=0",
        "training.max_logprob_gap=null",
        "training.max_tokens_per_turn=12",
        "training.max_response_tokens=300",
        f"training.checkpoint_every={STOP}",
        "training.keep_checkpoints=9",
        "training.kl_coef=0",
    ),
    *("env.train.curriculum=pass_rate", "env.train.curriculum_exploration=0.5"),
    "evaluation.pass_threshold=0.5",
)
STALE = (
    "training.max_staleness=1",
    "algorithm.importance_correction=token_truncate",
    "algorithm.importance_upper=100",
)


class PaidMix(FakeMix):
    """An environment that pays for letters."""

    def episode(self, row: Any) -> Episode:
        def session() -> FakeSession:
            return FakeSession(steady, paid)

        self.episodes.append(Episode(Task(row.env, row.split, row.index), session, self._rules))
        return self.episodes[-1]


@dataclass(frozen=True)
class Training:
    tasks: list[list[int]]
    """Indices of each step's tasks, from the trajectories."""
    lines: list[dict[str, Any]]
    weights: dict[str, Any]


def trained(
    root: Path, words: tuple[str, ...], before: Callable[[Any, TRLTrainConfig], Path | None]
) -> Training:
    """A training in a directory; `before` gets its rollouts, and returns the checkpoint to resume from."""
    spec = compose([*OVERRIDES, *words])
    order = schedule(TASKS, 2 * STEPS, seed=spec.seed, shuffle=True)
    with training(
        root,
        spec,
        PaidMix(RULES_HERE),
        TASKS,
        order,
    ) as (trainer, rollouts, config):
        checkpoint = before(rollouts, config)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    tasks: dict[int, list[int]] = {}
    for text in (root / "trajectories.jsonl").read_text().splitlines():
        record = json.loads(text)
        indices = tasks.setdefault(record["step"], [])
        if record["index"] not in indices:
            indices.append(record["index"])
    metrics = [json.loads(text) for text in Path(config.places.metrics).read_text().splitlines()]
    state = trainer.accelerator.unwrap_model(trainer.model).state_dict()
    weights = {name: value.detach().clone() for name, value in state.items()}
    return Training([tasks[step] for step in sorted(tasks)], metrics, weights)


def begin(rollouts: Any, config: TRLTrainConfig) -> Path | None:
    del rollouts, config
    return None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((), id="in turn"),
        pytest.param(STALE, id="ahead", marks=pytest.mark.slow),
    ],
)
def unbroken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[tuple[str, ...], Path, Training]:
    root = tmp_path_factory.mktemp("unbroken")
    words: tuple[str, ...] = request.param
    return words, root, trained(root, words, begin)


def test_a_step_plays_what_the_rewards_draw(
    unbroken: tuple[tuple[str, ...], Path, Training],
) -> None:
    words, root, run = unbroken
    spec = compose([*OVERRIDES, *words])
    fixed = [
        row.index
        for row in schedule(
            TASKS,
            2 * STEPS,
            seed=spec.seed,
            shuffle=True,
        )
    ]
    assert [index for step in run.tasks for index in step] != fixed
    assert run.tasks[0] == fixed[:2]
    assert run.lines[0]["curriculum/untried"] == 1.0
    assert [line["episodes/num"] for line in run.lines] == [8.0] * STEPS
    lag = 1 + spec.training.max_staleness
    tried = [
        len({index for step in run.tasks[: number + 1 - lag] for index in step})
        for number in range(lag, STEPS)
    ]
    untried = [line["curriculum/untried"] for line in run.lines[lag:]]
    assert untried == pytest.approx([1 - number / len(TASKS) for number in tried])
    state = CurriculumState.from_json((root / f"checkpoints/checkpoint-{STOP}" / FILE).read_text())
    settled = [group for groups in state.groups.values() for group in groups]
    assert {group.step for group in settled} == set(range(STOP))
    assert [draw.step for draw in state.draws] == [STOP] * (lag - 1)


def test_a_resumed_training_has_the_tasks_and_the_weights_of_the_unbroken_one(
    unbroken: tuple[tuple[str, ...], Path, Training], tmp_path: Path
) -> None:
    import torch

    words, root, whole = unbroken

    def resume(rollouts: Any, config: TRLTrainConfig) -> Path | None:
        name = f"checkpoint-{STOP}"
        checkpoints = Path(config.grpo["output_dir"])
        shutil.copytree(root / "checkpoints" / name, checkpoints / name)
        checkpoint = latest_checkpoint(checkpoints)
        assert checkpoint is not None
        rollouts.resume(checkpoint)
        return checkpoint

    resumed = trained(tmp_path, words, resume)
    num_ahead = compose([*OVERRIDES, *words]).training.max_staleness
    assert resumed.tasks == whole.tasks[STOP + num_ahead :]
    for name, value in whole.weights.items():
        if num_ahead:
            # Two threads compute at the same time, and torch's sums depend on the threads that are free.
            torch.testing.assert_close(resumed.weights[name], value)
        else:
            assert torch.equal(resumed.weights[name], value), name
    shares = [name for name in whole.lines[0] if name.startswith("curriculum/")]
    assert len(shares) == 5
    for name in shares:
        values = [line[name] for line in whole.lines[STOP:]]
        assert [line[name] for line in resumed.lines] == values


class Pair:
    """One of two ranks, each in a thread."""

    def __init__(self, number: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.number = number
        self.is_main = number == 0
        self._shared = shared
        self._barrier = barrier

    def gather(self, values: Sequence[Any]) -> list[list[Any]]:
        self._shared[self.number] = list(values)
        self._barrier.wait(DEADLINE_S)
        gathered = list(self._shared)
        self._barrier.wait(DEADLINE_S)
        return gathered


def test_one_rank_calls_the_users_function_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that is not the same twice would give ranks other tasks."""
    (tmp_path / "my_random_curriculum.py").write_text(
        "import random\n\ndef weights(tasks):\n    return [random.random() for task in tasks]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec = compose([*OVERRIDES, "env.train.curriculum=my_random_curriculum:weights"])
    shared: list[Any] = [None, None]
    barrier = threading.Barrier(2)

    def drawn(number: int) -> list[list[int]]:
        ranks: Any = Pair(number, shared, barrier)
        curriculum = curriculum_of(spec, TASKS, STEPS, decide_together(ranks))
        assert curriculum is not None
        steps = []
        for step in range(STEPS):
            curriculum.begin(step)
            steps.append([row.index for row in curriculum.tasks(step)])
        return steps

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(drawn, range(2))
    assert first == second
