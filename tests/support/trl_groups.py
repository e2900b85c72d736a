"""Made-up groups of episodes for TRL's trainer, and the log of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.jobs import PLACES, train_config
from tests.support.tiny import tokenizer_and_model
from xp.backends.trl.control.render import grpo_config
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.train import settled_reward
from xp.composition import compose
from xp.episode.metrics_file import MetricsFile


class Groups:
    """A rollout function that plays nothing: fixed completions with the given settled rewards."""

    def __init__(self, settled: list[float | None]) -> None:
        self.settled = settled

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        end = trainer.processing_class.eos_token_id
        completions = [[20 + number, 40, end] for number in range(len(prompts))]
        return {
            "prompt_ids": [[10, 11]] * len(prompts),
            "completion_ids": completions,
            "logprobs": [[0.0] * 3] * len(prompts),
            "env_mask": [[1, 0, 1]] * len(prompts),
            "settled": self.settled,
            "episodes": list(range(len(prompts))),
        }


def step_log(tmp_path: Path, *overrides: str) -> Any:
    from xp.backends.trl.worker.steps import TRLStepLog

    config = train_config(TRLTrainConfig, compose(overrides))
    config = replace(config, places=replace(config.places, run=str(tmp_path)))
    return TRLStepLog(config, MetricsFile(tmp_path / "metrics.jsonl", "train", 1))


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
