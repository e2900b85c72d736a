"""Loss and gradient of the real GRPOTrainer, against the formula in NumPy: ratio, clip, KL, masks, aggregation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cases import few
from tests.support.tiny import leave_model
from xp.backends.trl.control.render import grpo_config
from xp.backends.trl.worker.train import settled_reward
from xp.composition import compose
from xp.worker.places import RunPaths

pytestmark = pytest.mark.timeout(1500)

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
PROMPT = [10, 11, 12]
FIRST = 20
"""Token by which the first episode begins; the second begins by the next one."""
REWARDS: list[float | None] = [1.0, None, 0.0, 0.5, 0.3, 0.9, 0.1, 0.2]
TEMPERATURE = 0.7
KL = 0.05
LOW = 0.1
HIGH = 0.3
ROUNDINGS = 32
"""Roundings of float32 that a term of the loss may carry: TRL's advantages are float32, the weights here are float64.

They are relative to the terms, which nearly cancel (cispo's by a factor of up to a thousand), so that the loss which is
left carries the errors of all. With weights in float32 an error would be a log-probability's, which grows with logits
and depends on the machine's kernels: one machine stayed below a bound of 64 roundings, another did not. In float64 the
errors of all cases are at most 5 roundings, and 2.1e-6 of a gradient's norm.
"""
RATE = 2e-4
"""So that one update moves ratios past the clip, and leaves the KL penalty of the policy term's own size."""


def completions(end: int) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of eight episodes of different lengths, and which of them the policy wrote."""
    ids = [[FIRST + number, *range(40, 40 + number), end] for number in range(8)]
    masks = [[1, *[position % 2 for position in range(number)], 1] for number in range(8)]
    masks[1] = [0] * len(masks[1])  # a void episode
    return ids, masks


def advantages(scale: str) -> np.ndarray:
    rewards = np.array([np.nan if reward is None else reward for reward in REWARDS]).reshape(2, 4)
    centred = rewards - np.nanmean(rewards, 1, keepdims=True)
    deviation = {
        "group_std": np.nanstd(rewards, 1, keepdims=True, ddof=1),
        "batch_std": np.nanstd(rewards, ddof=1),
        "none": 1 - 1e-4,
    }[scale]
    return np.nan_to_num(centred / (deviation + 1e-4)).ravel()


@dataclass(frozen=True)
class Update:
    """Values of one update by the formula."""

    loss: float
    size: float
    """The sum of the absolute values of the loss's terms."""
    slopes: list[np.ndarray]
    num_clipped: int
    """Tokens."""


@dataclass(frozen=True)
class Formula:
    """The papers' loss, and its slope in every token's log-probability, over all episodes of an update."""

    policy_loss: str = "clip"
    ratio_level: str = "token"
    aggregation: str = "token_mean"
    scale: str = "group_std"
    dual_clip: float | None = None

    def tokens(
        self, now: np.ndarray, old: np.ndarray, mask: np.ndarray, advantage: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one episode's tokens: what is to be made large, its slope, and where the clip is at work."""
        log_ratio = now - old
        if self.ratio_level == "sequence":
            log_ratio = np.full_like(log_ratio, (log_ratio * mask).sum() / max(1, mask.sum()))
        ratio = np.exp(log_ratio)
        if self.policy_loss == "cispo":
            weight = np.minimum(ratio, 1 + HIGH)
            return weight * advantage * now, weight * advantage, ratio > 1 + HIGH
        clipped = np.clip(ratio, 1 - LOW, 1 + HIGH) * advantage
        is_clipped = clipped < ratio * advantage
        if self.dual_clip is not None and advantage < 0:  # 1912.09729, equation 5
            is_clipped |= ratio > self.dual_clip
            ratio = np.minimum(ratio, self.dual_clip)
        # An episode's mean ratio has, in each of its n tokens, 1/n of the slope, and there are n terms of it.
        return (
            np.minimum(ratio * advantage, clipped),
            np.where(is_clipped, 0, ratio * advantage),
            is_clipped,
        )

    def __call__(
        self, now: list[np.ndarray], old: list[np.ndarray], members: list[int], num_updates: int
    ) -> Update:
        """An update over some of the episodes, with slopes in all of them.

        The KL is k3 to the initial model, which is the old one; token_mean divides by an update's share of all tokens.
        """
        masks = [np.array(mask) for mask in completions(0)[1]]
        total = 0.0
        size = 0.0
        slopes = [np.zeros(len(mask)) for mask in masks]
        num_clipped = 0
        for member in members:
            after = now[member]
            before = old[member]
            mask = masks[member]
            gain, slope, is_clipped = self.tokens(
                after, before, mask, advantages(self.scale)[member]
            )
            penalty = np.exp(before - after) - (before - after) - 1
            count = {
                "token_mean": sum(map(sum, masks)) / num_updates,
                "sequence_mean": len(members) * max(1, mask.sum()),
                "constant": len(members) * 420,
            }[self.aggregation]
            total += ((KL * penalty - gain) * mask).sum() / count
            size += ((KL * penalty + np.abs(gain)) * mask).sum() / count
            slopes[member] = (KL * (1 - np.exp(before - after)) - slope) * mask / count
            num_clipped += int((is_clipped * mask).sum())
        return Update(total, size, slopes, num_clipped)


@dataclass
class Seen:
    """The policy's log-probabilities of completion tokens before each update, and the formula's values from them."""

    formula: Formula
    num_updates: int
    """Number of updates of a pass."""
    members: list[int]
    """Episodes of the update that is under way."""
    logprobs: list[list[np.ndarray]]
    updates: list[Update]
    grad_norms: list[float]
    unbounded: list[float] = field(default_factory=list)
    """Losses without the dual clip."""

    def record(self, model: Any, ids: list[list[int]]) -> None:
        import torch

        width = max(map(len, ids))
        # Padding on the right: no token sees it.
        whole = torch.tensor([[*PROMPT, *one, *[0] * (width - len(one))] for one in ids])
        logprobs = torch.log_softmax(model(input_ids=whole).logits / TEMPERATURE, -1)[
            :, len(PROMPT) - 1 : -1
        ]
        taken = logprobs.gather(2, whole[:, len(PROMPT) :, None])[..., 0]
        found = [row[: len(one)] for row, one in zip(taken, ids, strict=True)]
        self.logprobs.append([one.detach().double().numpy() for one in found])
        update = self.formula(
            self.logprobs[-1],
            self.logprobs[0],
            self.members,
            self.num_updates,
        )
        plain = replace(self.formula, dual_clip=None)
        self.unbounded.append(
            plain(self.logprobs[-1], self.logprobs[0], self.members, self.num_updates).loss
        )
        self.members = []
        self.updates.append(update)
        products = zip(found, update.slopes, strict=True)
        product = sum((one * torch.tensor(slope)).sum() for one, slope in products)
        gradients = torch.autograd.grad(product, list(model.parameters()), allow_unused=True)
        squares = [gradient.square().sum() for gradient in gradients if gradient is not None]
        self.grad_norms.append(float(torch.stack(squares).sum().sqrt()))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("base")
    leave_model(path)
    return path


def trained(
    base: Path, out: Path, formula: Formula, micro: int, num_updates: int
) -> tuple[list[dict[str, float]], Seen]:
    """Two passes over one rollout step of two groups of four: the trainer's log, and the formula's word on each."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(base)
    ids, masks = completions(tokenizer.eos_token_id)
    seen = Seen(formula, num_updates, [], [], [], [])

    class Watched(GRPOTrainer):  # type: ignore[misc]
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            seen.members += (inputs["completion_ids"][:, 0] - FIRST).tolist()
            return super()._compute_loss(model, inputs)

    class Record(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            seen.record(model, ids)

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:  # noqa: ARG001
        zeros = [[0.0] * len(one) for one in ids]
        return {
            "prompt_ids": [PROMPT] * 8,
            "completion_ids": ids,
            "logprobs": zeros,
            "env_mask": masks,
            "settled": REWARDS,
            "episodes": list(range(8)),
        }

    spec = compose(
        [
            *("training.prompts_per_step=2", "training.group_size=4", "training.num_steps=1"),
            *(
                "training.passes_per_step=2",
                f"training.learning_rate={RATE}",
                "training.warmup_updates=0",
            ),
            *(f"training.temperature={TEMPERATURE}", f"training.kl_coef={KL}"),
            f"algorithm.clip_low={1.0 if formula.policy_loss == 'cispo' else LOW}",
            f"algorithm.clip_high={HIGH}",
            f"algorithm.dual_clip={'null' if formula.dual_clip is None else formula.dual_clip}",
            f"algorithm.policy_loss={formula.policy_loss}",
            f"algorithm.ratio_level={formula.ratio_level}",
            f"algorithm.loss_aggregation={formula.aggregation}",
            f"algorithm.advantage_scale={formula.scale}",
            f"training.micro_batch_size={micro}",
            f"training.updates_per_step={num_updates}",
        ]
    )
    trainer = Watched(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64),
        args=GRPOConfig(
            **grpo_config(spec, PLACES) | {"output_dir": str(out), "save_strategy": "no"}
        ),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 2),
        rollout_func=rollout,
        reward_funcs=settled_reward,
        callbacks=[Record()],
    )
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line], seen


@pytest.mark.parametrize(
    ("formula", "micro", "num_updates"),
    few(
        (
            # Who is in which update is drawn by the trainer.
            (Formula(), 2, 2),
            (Formula(ratio_level="sequence", aggregation="sequence_mean"), 4, 2),
            (Formula(policy_loss="cispo", scale="batch_std"), 2, 2),
            (Formula(aggregation="sequence_mean", scale="none"), 8, 1),
            (Formula(aggregation="constant"), 4, 1),
            (Formula(ratio_level="sequence", aggregation="token_mean"), 8, 1),
            (Formula(dual_clip=1.3), 4, 1),
            (Formula(scale="batch_std"), 8, 1),
            (Formula(aggregation="sequence_mean"), 4, 1),
            (Formula(ratio_level="sequence", aggregation="constant", scale="none"), 4, 1),
            (Formula(policy_loss="cispo"), 4, 1),
        ),
        7,
    ),
    ids=str,
)
def test_loss_and_gradient_of_every_update_are_the_formulas(
    base: Path, tmp_path: Path, formula: Formula, micro: int, num_updates: int
) -> None:
    lines, seen = trained(base, tmp_path, formula, micro, num_updates)
    assert len(lines) == len(seen.updates) == 2 * num_updates
    # The last update is off-policy: the clip and the KL penalty are at work.
    assert seen.updates[0].num_clipped == 0
    assert seen.updates[-1].num_clipped > 0
    assert (seen.unbounded[-1] > seen.updates[-1].loss) == (formula.dual_clip is not None)
    losses = np.array([update.loss for update in seen.updates])
    assert 1e-4 < abs(losses[1] - losses[0]) < 10
    bounds = (
        ROUNDINGS * np.finfo(np.float32).eps * np.array([update.size for update in seen.updates])
    )
    assert (bounds < 1e-3).all(), "small beside any difference in the formula"
    np.testing.assert_array_less(np.abs([line["loss"] for line in lines] - losses), bounds)
    np.testing.assert_allclose(
        [line["grad_norm"] for line in lines],
        seen.grad_norms,
        rtol=2e-5,
    )
