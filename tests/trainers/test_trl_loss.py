"""The loss that the real GRPOTrainer takes, against its formula in NumPy: ratio, clip, KL, masks, aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import tokenizer_and_model
from xp.backends.base import Places
from xp.backends.trl.render import grpo_config
from xp.backends.trl.train import settled_reward
from xp.compose import compose

PLACES = Places(run="runs/r", attempt=1, tasks="tasks/t")
PROMPT = [10, 11, 12]
REWARDS: list[float | None] = [1.0, None, 0.0, 0.5, 0.3, 0.9, 0.1, 0.2]
TEMPERATURE, KL, LOW, HIGH = 0.7, 0.05, 0.1, 0.3


def completions(end: int) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of eight episodes of different lengths, and which of them the policy wrote."""
    ids = [[20 + number, *range(40, 40 + number), end] for number in range(8)]
    masks = [[1, *[position % 2 for position in range(number)], 1] for number in range(8)]
    masks[1] = [0] * len(masks[1])  # a void episode
    return ids, masks


@dataclass
class Seen:
    """Log-probabilities of every completion token, before each update."""

    by_update: list[list[np.ndarray]]

    def record(self, model: Any, ids: list[list[int]]) -> None:
        import torch

        found = []
        with torch.no_grad():
            for completion in ids:
                whole = torch.tensor([[*PROMPT, *completion]])
                logits = model(input_ids=whole).logits[0].float() / TEMPERATURE
                logprobs = torch.log_softmax(logits, -1)[len(PROMPT) - 1 : -1]
                found.append(logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0].numpy())
        self.by_update.append(found)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer, model = tokenizer_and_model()
    path = tmp_path_factory.mktemp("base")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def trained(base: Path, out: Path, *overrides: str) -> tuple[list[float], Seen]:
    """Two passes over one rollout step of two groups of four; logged losses, and what the model said before each."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(base)
    ids, masks = completions(tokenizer.eos_token_id)
    seen = Seen([])

    class Record(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, model: Any, **__: Any) -> None:
            seen.record(model, ids)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:  # noqa: ARG001
        zeros = [[0.0] * len(one) for one in ids]
        return {
            "prompt_ids": [PROMPT] * 8,
            "completion_ids": ids,
            "logprobs": zeros,
            "env_mask": masks,
            "settled": REWARDS,
        }

    spec = compose(
        [
            *("training.prompts_per_step=2", "training.group_size=4", "training.num_steps=1"),
            *("training.passes_per_step=2", "training.learning_rate=0.02", "training.warmup_updates=0"),
            *(f"training.temperature={TEMPERATURE}", f"training.kl_coef={KL}"),
            *(f"algorithm.clip_low={LOW}", f"algorithm.clip_high={HIGH}"),
            *overrides,
        ]
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=GRPOConfig(**grpo_config(spec, PLACES) | {"output_dir": str(out), "save_strategy": "no"}),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 2),
        rollout_func=rollout,
        reward_funcs=settled_reward,
        callbacks=[Record()],
    )
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line], seen


def advantages(scale: str) -> np.ndarray:
    rewards = np.array([np.nan if reward is None else reward for reward in REWARDS]).reshape(2, 4)
    centred = rewards - np.nanmean(rewards, 1, keepdims=True)
    deviation = {
        "group_std": np.nanstd(rewards, 1, keepdims=True, ddof=1),
        "batch_std": np.nanstd(rewards, ddof=1),
        "none": 1 - 1e-4,
    }[scale]
    return np.nan_to_num(centred / (deviation + 1e-4)).ravel()


def expected_loss(seen: Seen, update: int, aggregation: str, scale: str) -> float:
    """PPO's clipped ratio against the first update's policy, plus k3 of the KL to the initial model (the same one)."""
    _, masks = completions(0)
    now, old = seen.by_update[update], seen.by_update[0]
    sums, counts = [], []
    for logprobs, before, mask, advantage in zip(now, old, masks, advantages(scale), strict=True):
        ratio = np.exp(logprobs - before)
        policy = -np.minimum(ratio * advantage, np.clip(ratio, 1 - LOW, 1 + HIGH) * advantage)
        penalty = np.exp(before - logprobs) - (before - logprobs) - 1
        sums.append(((policy + KL * penalty) * np.array(mask)).sum())
        counts.append(sum(mask))
    total, tokens = np.array(sums), np.array(counts)
    return float(
        {
            "token_mean": total.sum() / tokens.sum(),
            "sequence_mean": (total / np.maximum(tokens, 1)).mean(),
            "constant": total.sum() / (8 * 420),
        }[aggregation]
    )


@pytest.mark.parametrize(
    ("aggregation", "scale", "micro"),
    [
        ("token_mean", "group_std", 8),
        ("token_mean", "batch_std", 4),
        ("sequence_mean", "none", 8),
        ("sequence_mean", "group_std", 4),
        ("constant", "group_std", 4),
    ],
)
def test_the_loss_of_every_update_is_the_formulas(
    base: Path, tmp_path: Path, aggregation: str, scale: str, micro: int
) -> None:
    losses, seen = trained(
        base,
        tmp_path,
        f"algorithm.loss_aggregation={aggregation}",
        f"algorithm.advantage_scale={scale}",
        f"training.micro_batch_size={micro}",
    )
    expected = [expected_loss(seen, update, aggregation, scale) for update in (0, 1)]
    # The second pass is off-policy: the clip and the KL penalty are at work.
    assert abs(expected[1] - expected[0]) > 1e-4
    np.testing.assert_allclose(losses, expected, rtol=2e-3, atol=2e-5)
