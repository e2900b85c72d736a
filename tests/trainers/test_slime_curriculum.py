"""Curricula in Slime's own loops, rollout and checkpoints: the tasks that the table of past rewards draws."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.episode_facts import played
from tests.support.scripts import NO_RETRY, ROW, FakeMix
from tests.support.sections import replace
from tests.trainers.slime_play import Kept, args, arguments
from tests.trainers.slime_setup import engine, needs_slime, put_worker, worker_config
from xp.backends.slime.worker.rollout_process import write_played
from xp.backends.slime.worker.train import write_view
from xp.episode.metrics import EpisodeFacts
from xp.spec import RunSpec
from xp.tasks.curriculum import Curriculum
from xp.worker.slime_names import DRAWN_TASKS, train_program
from xp.worker.tasks import training_view

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


class Manager:
    """Slime's rollout manager, whose calls return at once as they end in this order on Ray."""

    def __init__(self, args: Any, source: Any) -> None:
        self._args = args
        self._source = source
        self.steps: list[Sequence[str]] = []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"do_{name}"))

    def do_generate(self, number: int) -> Any:
        from slime.rollout import sample_hooks
        from slime.rollout.sglang_rollout import generate_rollout

        from xp.backends.slime.worker.steps import log_rollout

        sample_hooks.set_current_rollout_id(number)
        output = generate_rollout(self._args, number, self._source)
        groups = sorted(output.samples, key=lambda group: group[0].group_index)
        self.steps.append([group[0].metadata["task_id"] for group in groups])
        samples = [sample for group in groups for sample in group]
        log_rollout(number, self._args, samples, output.metrics, 1.0)
        return output

    def do_save(self, number: int) -> None:
        self._source.save(number)

    def do_dispose(self) -> None: ...


def rollouts(args: Any, num_steps: int, latest: int | None = None, **more: Any) -> Any:
    """Slime's own loop without updates, from the checkpoint `latest` on; returns the spec and the steps' tasks."""
    from slime.utils.misc import load_function

    root = args.xp_root
    view = root / "tasks.jsonl"
    config = with_curriculum(worker_config(root, steps=STEPS, **KEYS | more))
    spec = config.spec
    write_view(training_view(config, rows_of(spec), view), view)
    args.rollout_batch_size = args.over_sampling_batch_size = PROMPTS
    args.n_samples_per_prompt = SIZE
    args.prompt_data = str(view)
    args.save = args.load = str(root / "checkpoints")
    args.custom_generate_function_path = f"{__name__}.play"
    args.dynamic_sampling_filter_path = None
    put_worker(args, config, FakeMix(NO_RETRY), Kept())
    args.num_rollout = num_steps
    args.start_rollout_id = 0 if latest is None else latest + 1
    args.save_interval = 1
    program = import_module(train_program(spec.training.max_staleness).removesuffix(".py"))
    with engine(args), pytest.MonkeyPatch.context() as patch:
        source = load_function(DRAWN_TASKS)(args)
        source.load(args.start_rollout_id - 1)
        manager = Manager(args, source)
        actor = MagicMock()
        patch.setattr(program, "ray", SimpleNamespace(get=lambda result: result))
        patch.setattr(program, "create_placement_groups", MagicMock())
        patch.setattr(program, "create_rollout_manager", lambda *_: (manager, None))
        patch.setattr(program, "create_training_models", lambda *_: (actor, None))
        for name in ("configure_logger", "init_tracking", "finish_tracking"):
            patch.setattr(program, name, lambda *_: None)
        program.train(args)
    return spec, manager.steps


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
