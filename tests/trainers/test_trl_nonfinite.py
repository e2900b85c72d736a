"""An update that is not a finite number, under the real GRPOTrainer: the run stops before it, or goes on without it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import PLACES
from tests.support.tiny import tokenizer_and_model
from tests.trainers.test_trl import Groups, step_log
from xp.backends.trl.control.render import grpo_config
from xp.backends.trl.worker.train import settled_reward
from xp.composition import compose
from xp.errors import ExitCode, XpError

OVERRIDES = (
    "training.prompts_per_step=1",
    "training.group_size=4",
    "training.micro_batch_size=4",
)
UNCHECKED = "training.max_logprob_gap=null"
"""The episodes' log-probabilities are made up."""


def make(
    tmp_path: Path,
    rule: str,
    num_steps: int,
    wrong: set[int],
    check: str = UNCHECKED,
    warmup_updates: int = 0,
    rewards: tuple[float, ...] = (1.0, 0.0, 0.5, 0.25),
    schedule: str = "constant",
    overrides: Sequence[str] = (),
    reference: Path | None = None,
    **native: Any,
) -> Any:
    """A trainer whose activations are nan in the updates of the given numbers, from 0; `reference`: a directory."""
    from datasets import Dataset
    from trl import GRPOConfig

    from xp.backends.trl.worker.guard import GuardedTrainer

    tokenizer, model = deepcopy(tokenizer_and_model())
    if reference is not None:
        model.config._name_or_path = str(reference)
    overrides = [
        *OVERRIDES,
        *overrides,
        f"training.warmup_updates={warmup_updates}",
        "training.entropy_coef=0",
        f"training.num_steps={num_steps}",
        f"training.on_nonfinite={rule}",
        f"training.lr_schedule={schedule}",
        check,
    ]
    config = grpo_config(compose(overrides), PLACES)
    own = {"output_dir": str(tmp_path), "save_strategy": "no", "learning_rate": 0.01, **native}
    log = step_log(tmp_path, *overrides)
    trainer = GuardedTrainer(
        log,
        model=model,
        args=GRPOConfig(**config | own),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(
            [
                {"prompt": [{"role": "user", "content": "x", "task_id": f"a/train/{n}"}]}
                for n in range(num_steps)
            ]
        ),
        rollout_func=Groups([*rewards]),
        reward_funcs=settled_reward,
        callbacks=[log],
    )

    def spoil(_: Any, __: Any, output: Any) -> Any:
        return (
            output * math.nan if model.training and trainer.state.global_step in wrong else output
        )

    model.get_input_embeddings().register_forward_hook(spoil)
    return trainer


def weights(trainer: Any) -> list[Any]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))


def test_foreign_log_probabilities_stop_the_run_before_the_weights(
    tmp_path: Path,
) -> None:
    trainer = make(tmp_path, "stop", 2, set(), "training.max_logprob_gap=0.1")
    before = weights(trainer)
    with pytest.raises(
        XpError, match=r"rollout step 1: the engine's log-probabilities .* differ"
    ) as caught:
        trainer.train()
    assert caught.value.code is ExitCode.DIVERGED
    assert are_equal(before, weights(trainer))


def test_a_nan_loss_stops_the_run_before_the_weights(tmp_path: Path) -> None:
    trainer = make(tmp_path, "stop", 3, {0})
    before = weights(trainer)
    with pytest.raises(XpError, match="rollout step 1: loss nan") as caught:
        trainer.train()
    assert caught.value.code is ExitCode.DIVERGED
    assert "on_nonfinite=skip" in str(caught.value)
    assert are_equal(before, weights(trainer))


def test_a_skipped_update_changes_no_weight(tmp_path: Path) -> None:
    trainer = make(tmp_path, "skip", 3, {1})
    seen: list[list[Any]] = []
    from transformers import TrainerCallback

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(weights(trainer))

    before = weights(trainer)
    trainer.add_callback(Look())
    trainer.train()
    assert not are_equal(before, seen[0])
    assert are_equal(seen[0], seen[1]), (
        "the update was to be left out, weight decay and momentum included"
    )
    assert not are_equal(seen[1], seen[2])
    assert all(bool(weight.isfinite().all()) for weight in seen[2])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/updates"] for line in lines] == [1.0, 0.0, 1.0]
    assert [line.get("training/loss") is not None for line in lines] == [True, False, True]


def test_an_update_of_equal_rewards_is_none(tmp_path: Path) -> None:
    make(tmp_path, "stop", 2, set(), rewards=(0.5,) * 4).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["training/updates"], line["training/grad_norm"]) for line in lines] == [
        (0.0, 0.0)
    ] * 2
