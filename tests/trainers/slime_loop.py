"""Slime's own loop and rollout without engines and updates: the tasks of each step, and its checkpoints of them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.support.scripts import NO_RETRY, FakeMix
from tests.trainers.slime_play import Kept
from tests.trainers.slime_setup import engine, put_worker
from xp.backends.slime.worker.train import write_view
from xp.worker.slime_names import train_program
from xp.worker.tasks import training_view


class Manager:
    """Slime's rollout manager, whose calls return at once as they end in this order on Ray.

    Args:
        args: Slime's.
        source: its source of tasks.
        step_of: what to keep of a step's output.
    """

    def __init__(self, args: Any, source: Any, step_of: Callable[[Any], Any]) -> None:
        self._args = args
        self._source = source
        self._step_of = step_of
        self.steps: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self, f"do_{name}"))

    def do_generate(self, number: int) -> Any:
        from slime.rollout import sample_hooks
        from slime.rollout.sglang_rollout import generate_rollout

        from xp.backends.slime.worker.steps import log_rollout

        sample_hooks.set_current_rollout_id(number)
        output = generate_rollout(self._args, number, self._source)
        self.steps.append(self._step_of(output))
        samples = [sample for group in output.samples for sample in group]
        log_rollout(number, self._args, samples, output.metrics, 1.0)
        return output

    def do_save(self, number: int) -> None:
        self._source.save(number)

    def do_dispose(self) -> None: ...


def looped(
    args: Any,
    config: Any,
    rows: list[Any],
    source: str,
    play: str,
    step_of: Callable[[Any], Any],
    *,
    num_steps: int,
    latest: int | None,
) -> list[Any]:
    """What `step_of` keeps of each step.

    Args:
        args: Slime's.
        config: of xp's worker.
        rows: the tasks.
        source: name of the class of Slime's source of tasks.
        play: name of Slime's custom generate function.
        step_of: see Manager.
        num_steps: steps of the whole training.
        latest: step of the checkpoint to resume from.
    """
    from slime.utils.misc import load_function

    training = config.spec.training
    view = args.xp_root / "tasks.jsonl"
    write_view(training_view(config, rows, view), view)
    args.rollout_batch_size = training.prompts_per_step
    args.over_sampling_batch_size = training.prompts_per_round
    args.n_samples_per_prompt = training.group_size
    args.prompt_data = str(view)
    args.save = args.load = str(args.xp_root / "checkpoints")
    args.custom_generate_function_path = play
    put_worker(args, config, FakeMix(NO_RETRY), Kept())
    args.num_rollout = num_steps
    args.start_rollout_id = 0 if latest is None else latest + 1
    args.save_interval = 1
    program = import_module(train_program(training.max_staleness).removesuffix(".py"))
    with engine(args), pytest.MonkeyPatch.context() as patch:
        tasks = load_function(source)(args)
        tasks.load(latest)
        manager = Manager(args, tasks, step_of)
        actor = MagicMock()
        patch.setattr(program, "ray", SimpleNamespace(get=lambda result: result))
        patch.setattr(program, "create_placement_groups", MagicMock())
        patch.setattr(program, "create_rollout_manager", lambda *_: (manager, None))
        patch.setattr(program, "create_training_models", lambda *_: (actor, None))
        for name in ("configure_logger", "init_tracking", "finish_tracking"):
            patch.setattr(program, name, lambda *_: None)
        program.train(args)
    return manager.steps
