"""Curricula in Slime's own loops, rollout and checkpoints: the tasks that the table of past rewards draws."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.episode_facts import played
from tests.support.scripts import ROW
from tests.support.sections import replace
from tests.trainers.slime_loop import looped
from tests.trainers.slime_play import args, arguments
from tests.trainers.slime_setup import needs_slime, worker_config
from xp.backends.slime.worker.rollout_process import write_played
from xp.episode.metrics import EpisodeFacts
from xp.spec import RunSpec
from xp.tasks.curriculum import Curriculum
from xp.worker.slime_names import DRAWN_TASKS

__all__ = ["args", "arguments"]
pytestmark = needs_slime

PROMPTS = 4
SIZE = 2
STEPS = 6
KEYS = {
    "group_size": SIZE,
    "prompts_per_step": PROMPTS,
    "shuffle": True,
}
CURRICULUM = {"curriculum": "pass_rate", "curriculum_exploration": 0.5}


def reward(index: int, number: int) -> float:
    """Tasks of three kinds: never passed, half passed, always passed."""
    return (0.0, float(number % 2), 1.0)[index % 3]


def fact(task_id: str, number: int) -> EpisodeFacts:
    env, _, index = task_id.split("/")
    return played(task_id, reward(int(index), number), env=env)


async def play(args: Any, sample: Any, sampling_params: Any) -> Any:
    """Slime's custom generate function."""
    del args, sampling_params
    one = fact(sample.metadata["task_id"], sample.index % SIZE)
    write_played(sample.metadata, one)
    sample.reward = one.outcome.reward
    sample.response = "played"
    sample.status = sample.Status.COMPLETED
    return sample


def rows_of(spec: RunSpec) -> list[Any]:
    (env,) = spec.env.members
    return [
        replace(ROW, env=env, task_id=f"{env}/train/{index}", index=index) for index in range(14)
    ]


def with_curriculum(config: Any) -> Any:
    env = config.spec.env
    members = {
        name: member.model_copy(update={"train": member.train.model_copy(update=CURRICULUM)})
        for name, member in env.members.items()
    }
    drawn = env.model_copy(update={"members": members})
    return replace(config, spec=config.spec.model_copy(update={"env": drawn}))


def simulated(spec: RunSpec) -> list[list[str]]:
    curriculum = Curriculum(spec, rows_of(spec), STEPS)
    steps: list[list[str]] = []
    for step in range(STEPS):
        curriculum.begin(step)
        steps.append([row.task_id for row in curriculum.tasks(step)])
        curriculum.settle(
            step, [fact(task, number) for task in steps[-1] for number in range(SIZE)]
        )
    return steps


def step_of(output: Any) -> list[str]:
    groups = sorted(output.samples, key=lambda group: group[0].group_index)
    return [group[0].metadata["task_id"] for group in groups]


def rollouts(args: Any, num_steps: int, latest: int | None = None, **more: Any) -> Any:
    """Slime's own loop without updates, from the checkpoint `latest` on; returns the spec and the steps' tasks."""
    config = with_curriculum(worker_config(args.xp_root, steps=STEPS, **KEYS | more))
    spec = config.spec
    args.dynamic_sampling_filter_path = None
    play = f"{__name__}.play"
    steps = looped(
        *(args, config, rows_of(spec), DRAWN_TASKS, play, step_of),
        num_steps=num_steps,
        latest=-1 if latest is None else latest,
    )
    return spec, steps


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_training_draws_and_resumes_as_a_plain_simulation(args: Any, staleness: int) -> None:
    spec, steps = rollouts(args, STEPS, max_staleness=staleness)
    expected = simulated(spec)
    assert steps == expected
    assert len({task for step in steps for task in step}) < PROMPTS * STEPS
    _, begun = rollouts(args, 3, max_staleness=staleness)
    assert begun == expected[:3]
    _, resumed = rollouts(args, STEPS, latest=1, max_staleness=staleness)
    assert resumed == expected[2:]
