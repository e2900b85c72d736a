"""Dynamic sampling in Slime's own rollout, with its source of tasks: the tasks and groups of a plain simulation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.scripts import ROW
from tests.support.uneven_groups import SIZE, has_variance, uneven
from tests.trainers.slime_loop import looped
from tests.trainers.slime_play import args, arguments
from tests.trainers.slime_setup import needs_slime, worker_config
from xp.backends.slime.worker.rollout_process import VOID_REWARD, write_played
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.tasks.schedule import schedule
from xp.worker.slime_names import (
    AHEAD_TASKS,
    FRESH_TASKS,
    HAS_VARIANCE,
)

__all__ = ["args", "arguments"]
pytestmark = needs_slime

PROMPTS = 4
STEPS = 4
ROWS = [replace(ROW, task_id=f"fake/train/{index}", index=index) for index in range(10)]
Steps = list[tuple[list[str], list[str]]]
"""Tasks of each step that were played, and those of the groups of its update."""
Rewards = Callable[[int], list[float | None]]
"""Number of a group, in xp's order -> rewards of its episodes; None: void."""
REWARDS: list[Rewards] = []
ENDS: dict[int, asyncio.Event] = {}
"""Events after which the groups of these numbers end, each of which sets that of the group before."""
PLAYED: list[Any] = []
"""Samples that were played."""


async def play(args: Any, sample: Any, sampling_params: Any) -> Any:
    """Slime's custom generate function: an episode takes any time, as those of short and long tasks."""
    del args, sampling_params
    PLAYED.append(sample)
    if (order := ENDS.get(sample.group_index)) is None:
        await asyncio.sleep(random.random() / 200)
    else:
        await order.wait()
        await asyncio.sleep(0.01)
        ENDS.get(sample.group_index - 1, asyncio.Event()).set()
    reward = REWARDS[-1](sample.group_index)[sample.index % SIZE]
    status = EpisodeStatus.VOID if reward is None else EpisodeStatus.FINISHED
    outcome = EpisodeResult(
        status,
        reward,
        () if reward is None else (reward,),
        1,
        1,
        0,
    )
    write_played(
        sample.metadata,
        EpisodeFacts(
            "fake",
            sample.metadata["task_id"],
            outcome,
            3,
        ),
    )
    sample.reward = VOID_REWARD if reward is None else reward
    sample.response = "played"
    sample.status = sample.Status.COMPLETED
    return sample


def simulated(num_steps: int) -> Steps:
    order = enumerate(schedule(ROWS, 1000, seed=1, shuffle=True))
    steps = []
    for _ in range(num_steps):
        seen: list[str] = []
        kept: list[str] = []
        while len(kept) < PROMPTS:
            number, row = next(order)
            seen.append(row.task_id)
            kept += [row.task_id] * has_variance(uneven(number))
        steps.append((seen, kept))
    return steps


def step_of(output: Any) -> tuple[list[str], list[str]]:
    tasks = [group[0].metadata["task_id"] for group in output.samples]
    seen = {sample.group_index: sample.metadata["task_id"] for sample in PLAYED}
    PLAYED.clear()
    assert len({sample.group_index for group in output.samples for sample in group}) == PROMPTS
    return [seen[index] for index in sorted(seen)], tasks


def rollouts(
    args: Any, rewards: Rewards, num_steps: int, latest: int | None = None, **more: Any
) -> Steps:
    """Slime's own loop without updates, from the checkpoint `latest` on; `more`: further values of the spec."""
    keys = {
        "group_size": SIZE,
        "prompts_per_step": PROMPTS,
        "max_void_fraction": 0.9,
        "shuffle": True,
    }
    config = worker_config(args.xp_root, steps=STEPS, **{"dynamic_sampling": True} | keys | more)
    is_dynamic = config.spec.algorithm.dynamic_sampling
    args.dynamic_sampling_filter_path = HAS_VARIANCE if is_dynamic else None
    source = FRESH_TASKS if is_dynamic else AHEAD_TASKS
    REWARDS.append(rewards)
    PLAYED.clear()
    play = f"{__name__}.play"
    return looped(
        args,
        config,
        ROWS,
        source,
        play,
        step_of,
        num_steps=num_steps,
        latest=latest,
    )


def test_a_training_has_the_tasks_and_groups_of_a_plain_simulation(args: Any) -> None:
    expected = simulated(STEPS)
    assert sum(len(seen) for seen, _ in expected) > 3 * PROMPTS * STEPS, (
        "several epochs of the tasks"
    )
    assert rollouts(args, uneven, STEPS) == expected


def test_a_larger_round_fills_a_step_with_the_groups_that_end_first(args: Any) -> None:
    prompts_per_round = PROMPTS + 2
    ENDS.update({number: asyncio.Event() for number in range(2 * prompts_per_round)})
    for last in (prompts_per_round - 1, 2 * prompts_per_round - 1):
        ENDS[last].set()
    try:
        steps = rollouts(
            args,
            lambda _: [0.0, 1.0, 0.0],
            2,
            generation_prompts=prompts_per_round,
        )
    finally:
        ENDS.clear()
    order = [
        row.task_id
        for row in schedule(
            ROWS,
            2 * prompts_per_round,
            seed=1,
            shuffle=True,
        )
    ]
    rounds = order[:prompts_per_round], order[prompts_per_round:]
    assert steps == [(played, played[-PROMPTS:]) for played in rounds]


def test_a_resumed_training_goes_on_with_fresh_tasks(args: Any) -> None:
    begun = rollouts(args, uneven, 2)
    assert begun + rollouts(args, uneven, STEPS, latest=1) == simulated(STEPS)


@pytest.mark.parametrize("is_dynamic", [True, False])
def test_a_training_whose_rollouts_are_ahead_goes_on_with_the_tasks_after_its_checkpoint(
    args: Any, is_dynamic: bool
) -> None:
    """Slime writes the checkpoint of step 1 when step 2 has been played."""
    more = {"max_staleness": 1, "dynamic_sampling": is_dynamic}
    order = [
        row.task_id
        for row in schedule(
            ROWS,
            STEPS * PROMPTS,
            seed=1,
            shuffle=True,
        )
    ]
    plain = [order[at : at + PROMPTS] for at in range(0, len(order), PROMPTS)]
    expected = simulated(STEPS) if is_dynamic else [(tasks, tasks) for tasks in plain]
    assert rollouts(args, uneven, 3, **more) == expected[:3]
    assert rollouts(args, uneven, STEPS, latest=1, **more) == expected[2:]


def test_a_step_that_cannot_be_filled_ends_the_training(args: Any) -> None:
    def hopeless(number: int) -> list[float | None]:
        return [0.0, 1.0, 0.0] if number < 2 * PROMPTS - 1 else [0.0] * SIZE

    with pytest.raises(XpError, match=f"3 of a step's {5 * PROMPTS} groups") as caught:
        rollouts(args, hopeless, STEPS, max_sample_batches=5)
    assert caught.value.code is ExitCode.NOT_TRAINED
