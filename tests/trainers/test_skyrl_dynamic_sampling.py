"""Dynamic sampling in SkyRL's own loop, loader, filter and checkpoints: the tasks and groups of a plain simulation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.scripts import ROW
from tests.support.skyrl_trainer import without_updates
from tests.support.tiny import tokenizer_and_model
from tests.support.uneven_groups import SIZE, has_variance, uneven
from tests.trainers.skyrl_parts import AHEAD, native, train_config
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.generator import VOID
from xp.backends.skyrl.worker.train import write_view
from xp.errors import ExitCode, XpError
from xp.tasks.schedule import schedule
from xp.worker.tasks import training_view

PROMPTS = 4
STEPS = 5
ROUND = "training.generation_prompts=6"
WORDS = (
    *("algorithm=dapo", f"training.prompts_per_step={PROMPTS}", f"training.group_size={SIZE}"),
    *("training.micro_batch_size=3", "training.warmup_updates=0", "evaluation.every=null"),
)
ROWS = [replace(ROW, task_id=f"fake/train/{index}", index=index) for index in range(10)]
NUMBERS = {row.task_id: number for number, row in enumerate(ROWS)}
Rewards = Callable[[int], list[float | None]]
"""Number of a group, in the order of play -> rewards of its episodes; None: void."""


@dataclass
class Run:
    seen: list[list[str]]
    """Tasks of each step, in the order of play."""
    kept: list[list[str]]
    """Tasks of the groups of each update."""


def simulated(rewards: Rewards, num_steps: int, prompts_per_round: int = PROMPTS) -> Run:
    order = iter(schedule(ROWS, 1000, seed=1, shuffle=True))
    run = Run([], [])
    number = 0
    for _ in range(num_steps):
        seen: list[str] = []
        kept: list[str] = []
        while len(kept) < PROMPTS:
            for _ in range(prompts_per_round):
                task = next(order).task_id
                seen.append(task)
                kept += [task] if has_variance(rewards(number)) else []
                number += 1
        run.seen.append(seen)
        run.kept.append(kept[:PROMPTS])
    return run


def tasks_of(input_batch: Any) -> list[str]:
    """Tasks of the groups of a batch."""
    tasks = [extras["task_id"] for extras in input_batch["env_extras"]]
    assert tasks[::SIZE] == tasks[SIZE - 1 :: SIZE]
    return tasks[::SIZE]


def played(tasks: list[str], rewards: list[float | None]) -> dict[str, Any]:
    """SkyRL's output of a generator."""
    return {
        "prompt_token_ids": [[NUMBERS[task]] for task in tasks for _ in range(SIZE)],
        "response_ids": [[1, 2]] * len(rewards),
        "rewards": [[0.0, reward or 0.0] for reward in rewards],
        "loss_masks": [[0, 0] if reward is None else [1, 1] for reward in rewards],
        "stop_reasons": [VOID if reward is None else "stop" for reward in rewards],
        "rollout_logprobs": [[0.0, 0.0]] * len(rewards),
    }


def without_models(kind: Any, run: Run) -> Any:
    """A class of trainers that keep the tasks of their updates, and update nothing."""

    class Trainer(without_updates(kind)):  # type: ignore[misc]
        def convert_to_training_input(self, generator_output: Any, uids: Any) -> Any:
            assert [uids.count(uid) for uid in uids] == [SIZE] * SIZE * PROMPTS, (
                "each group has its own baseline"
            )
            tasks = [ROWS[first].task_id for (first,) in generator_output["prompt_token_ids"]]
            run.kept[self.global_step - 1] += tasks[::SIZE]
            return super().convert_to_training_input(generator_output, uids)

    return Trainer


class Log:
    """A tracker that keeps the tasks that were played."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def episodes(self, tasks: list[str], step: int, rollout_s: float) -> None:
        self._run.seen[step - 1] += tasks


class Dispatch:
    """SkyRL's workers, which do nothing; the generator hears of each transfer of weights."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    async def save_weights_for_sampler(self) -> None:
        if self._generator is not None:
            self._generator.transfers.append(self._generator.num_running)
        await asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: {
            "get_lcm_dp_size": 4,
            "get_timing_metrics": {},
            "get_node_ids": [],
        }.get(name)


def made_trainer(
    root: Path, config: SkyRLTrainStageConfig, run: Run, kind: Any, generator: Any = None
) -> Any:
    """A trainer without models, with a dataset that xp's experiment makes of the view."""
    from skyrl.train.trainer import RayPPOTrainer

    from xp.backends.skyrl.worker.experiment import XpTraining

    cfg = native(config, root)
    view = Path(cfg.data.train_data[0])
    view.parent.mkdir(parents=True, exist_ok=True)
    write_view(training_view(config, ROWS, view), view)
    experiment = object.__new__(XpTraining)
    experiment.cfg = cfg
    experiment.tokenizer = tokenizer_and_model()[0]
    experiment._config = config
    parts = {
        "tokenizer": tokenizer_and_model()[0],
        "train_dataset": experiment.get_train_dataset(),
        "inference_engine_client": SimpleNamespace(sleep=lambda: asyncio.sleep(0)),
    }
    made = without_models(kind, run)(
        config, None, None, cfg=cfg, tracker=Log(run), generator=generator, **parts
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RayPPOTrainer,
            "build_models",
            lambda self, *_: setattr(self, "dispatch", Dispatch(generator)),
        )
        made.build_models(None, None, None)
    return made


def trained(root: Path, rewards: Rewards, num_steps: int, *more: str, first: int = 0) -> Run:
    """Trains with SkyRL's loop, from its last checkpoint if there is one.

    Args:
        root: the outputs root.
        rewards: of the groups.
        num_steps: steps of the whole training.
        more: further words of the spec.
        first: number of groups that were played before.
    """
    from xp.backends.skyrl.worker.trainer import XpTrainer

    run = Run([[] for _ in range(num_steps)], [[] for _ in range(num_steps)])
    number = iter(range(first, 1000))

    class Trainer(XpTrainer):
        async def generate(self, input_batch: Any) -> Any:
            tasks = tasks_of(input_batch)
            run.seen[self.global_step - 1] += tasks
            return played(tasks, [reward for _ in tasks for reward in rewards(next(number))])

    config = train_config(*WORDS, f"training.num_steps={num_steps}", *more)
    made = made_trainer(root, config, run, Trainer)
    asyncio.run(made.train())
    assert made.global_step == num_steps
    return run


class AnyOrder:
    """A generator whose groups end in any order.

    Args:
        rewards: of the groups.
        held: groups that end after a transfer of weights.
    """

    chat = SimpleNamespace(end_ids=(0,), template=None)

    def __init__(self, rewards: Rewards, held: Collection[int]) -> None:
        self._rewards = rewards
        self._held = held
        self.num_running = 0
        self.transfers: list[int] = []
        """Groups that each transfer of weights has found running."""

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        number = int(input_batch["trajectory_ids"][0].instance_id)
        begun_at = len(self.transfers)
        self.num_running += 1
        await asyncio.sleep(random.random() / 100)
        while number in self._held and len(self.transfers) == begun_at:
            await asyncio.sleep(0.001)
        self.num_running -= 1
        return played(tasks_of(input_batch), self._rewards(number)) | {"rollout_metrics": {}}

    def played(self, input_batch: Any) -> list[str]:
        return tasks_of(input_batch)


def trained_ahead(
    root: Path,
    rewards: Rewards,
    num_steps: int,
    staleness: int,
    *more: str,
    held: Collection[int] = (),
) -> tuple[Run, list[int]]:
    """The same with SkyRL's fully asynchronous loop, and the groups that each transfer of weights has found."""
    from xp.backends.skyrl.worker.async_rollouts import AsyncTrainer

    words = (
        *WORDS,
        *AHEAD,
        f"training.max_staleness={staleness}",
        f"training.num_steps={num_steps}",
        *more,
    )
    run = Run([[] for _ in range(num_steps)], [[] for _ in range(num_steps)])
    generator = AnyOrder(rewards, held)
    asyncio.run(
        made_trainer(
            root,
            train_config(*words),
            run,
            AsyncTrainer,
            generator,
        ).train()
    )
    return run, generator.transfers


@pytest.mark.parametrize(("staleness", "unfinished"), [(1, "wait"), (2, "continue")])
def test_a_training_beside_sampling_has_the_first_groups_in_order_and_goes_on_after_them(
    tmp_path: Path, staleness: int, unfinished: str
) -> None:
    words = staleness, f"training.unfinished={unfinished}"
    expected = simulated(uneven, STEPS, 1)
    # The first group of the fourth step begins before the update of the third.
    held = {sum(map(len, expected.seen[:3]))} if unfinished == "continue" else ()
    begun, _ = trained_ahead(tmp_path, uneven, 2, *words)
    resumed, num_running = trained_ahead(
        tmp_path,
        uneven,
        STEPS,
        *words,
        held=held,
    )
    assert begun.kept + resumed.kept[2:] == expected.kept
    assert begun.seen + resumed.seen[2:] == expected.seen
    assert len(num_running) == 1 + STEPS - 2
    assert any(num_running) is (unfinished == "continue")
    assert trained_ahead(
        tmp_path,
        uneven,
        STEPS,
        *words,
    )[0] == Run([[]] * STEPS, [[]] * STEPS)


def test_a_training_beside_sampling_ends_where_a_step_cannot_be_filled(tmp_path: Path) -> None:
    def hopeless(number: int) -> list[float | None]:
        return [0.0, 1.0, 0.0] if number < PROMPTS + 2 else [0.0] * SIZE

    with pytest.raises(XpError, match=f"2 of a step's {5 * PROMPTS} groups") as caught:
        trained_ahead(
            tmp_path,
            hopeless,
            STEPS,
            1,
            "algorithm.max_sample_batches=5",
        )
    assert caught.value.code is ExitCode.NOT_TRAINED


def test_a_training_has_the_tasks_and_groups_of_a_plain_simulation(tmp_path: Path) -> None:
    expected = simulated(uneven, STEPS)
    assert sum(map(len, expected.seen)) > 3 * STEPS * PROMPTS, (
        "many batches a step, several epochs of the tasks"
    )
    assert trained(tmp_path, uneven, STEPS) == expected


def test_a_round_of_other_size_fills_a_step_with_its_first_groups(tmp_path: Path) -> None:
    expected = simulated(uneven, STEPS, 6)
    assert expected.kept != simulated(uneven, STEPS).kept
    begun = trained(tmp_path, uneven, 2, ROUND)
    resumed = trained(
        tmp_path,
        uneven,
        STEPS,
        ROUND,
        first=sum(map(len, begun.seen)),
    )
    assert begun.seen + resumed.seen[2:] == expected.seen
    assert begun.kept + resumed.kept[2:] == expected.kept


def test_a_resumed_training_goes_on_with_fresh_tasks_and_then_ends(tmp_path: Path) -> None:
    expected = simulated(uneven, STEPS)
    begun = trained(tmp_path, uneven, 2)
    resumed = trained(tmp_path, uneven, STEPS, first=sum(map(len, begun.seen)))
    assert begun.seen + resumed.seen[2:] == expected.seen
    assert begun.kept + resumed.kept[2:] == expected.kept
    assert trained(tmp_path, uneven, STEPS) == Run([[]] * STEPS, [[]] * STEPS)


@pytest.mark.parametrize("num_late", [0, 1])
def test_a_step_that_cannot_be_filled_ends_the_training(tmp_path: Path, num_late: int) -> None:
    """With or without a group of variance in the last batch."""
    played: list[int] = []
    end = (1 + 5) * PROMPTS

    def hopeless(number: int) -> list[float | None]:
        played.append(number)
        return [0.0, 1.0, 0.0] if number < PROMPTS + 2 or number >= end - num_late else [0.0] * SIZE

    with pytest.raises(XpError, match=f"{2 + num_late} of a step's {5 * PROMPTS} groups") as caught:
        trained(tmp_path, hopeless, STEPS, "algorithm.max_sample_batches=5")
    assert caught.value.code is ExitCode.NOT_TRAINED
    assert played == list(range(end))
