"""Advantages and policy loss of a small batch through SkyRL's own functions, against the papers' formulas in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.skyrl_parts import train_config
from tests.trainers.test_skyrl_trainer import SMALL, UIDS, output, trainer

REWARDS = np.array([1.0, 0.2, 0.0, 0.5, 0.3, 0.9, 0.1, 0.2])
NUM_TOKENS = np.array([1, 2, 3, 3, 2, 1, 3, 2])
LONGEST = 3
MASK = (np.arange(LONGEST)[None] < NUM_TOKENS[:, None]).astype(float)
MAX_RESPONSE_TOKENS = 420


def papers_advantages(algorithm: str) -> np.ndarray:
    """GRPO (2402.03300) and DAPO (2503.14476): centred and scaled by group; Dr. GRPO (2503.20783): centred; RLOO
    (2402.14740): minus the mean of the others."""
    groups = REWARDS.reshape(2, 4)
    centred = groups - groups.mean(1, keepdims=True)
    if algorithm in ("grpo", "dapo"):
        return (centred / (groups.std(1, keepdims=True, ddof=1) + 1e-6)).ravel()
    if algorithm == "rloo":
        return (groups - (groups.sum(1, keepdims=True) - groups) / 3).ravel()
    return centred.ravel()


def papers_loss(algorithm: str, ratio: np.ndarray, advantages: np.ndarray) -> float:
    high = 1.28 if algorithm == "dapo" else 1.2
    scaled = advantages[:, None]
    per_token = -np.minimum(ratio * scaled, np.clip(ratio, 0.8, high) * scaled) * MASK
    over_all = len(REWARDS) * MAX_RESPONSE_TOKENS if algorithm in ("dr_grpo", "rloo") else NUM_TOKENS.sum()
    return float(per_token.sum() / over_all)


@pytest.fixture(params=["grpo", "dapo", "dr_grpo", "rloo"])
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(algorithm: str, tmp_path: Path) -> Any:
    return trainer(tmp_path, train_config(*SMALL, f"algorithm={algorithm}"))


def test_advantages_are_the_papers(made: Any, algorithm: str) -> None:
    generated, uids = made.postprocess_generator_output(output(list(REWARDS)), UIDS)
    data = made.convert_to_training_input(generated, uids)
    data["values"] = None
    found = made.compute_advantages_and_returns(data)["advantages"][:, 0].numpy()
    assert found == pytest.approx(papers_advantages(algorithm), abs=1e-5)


def test_the_policy_loss_is_the_papers(made: Any, algorithm: str) -> None:
    import torch
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        PolicyLossRegistry,
        apply_loss_reduction_to_advantages_minibatch,
    )

    settings = made.cfg.trainer.algorithm
    drawn = np.random.default_rng(0)
    old, new = drawn.normal(-1.0, 0.3, MASK.shape), drawn.normal(-1.0, 0.3, MASK.shape)
    advantages = papers_advantages(algorithm)
    mask = torch.tensor(MASK)
    reduced = apply_loss_reduction_to_advantages_minibatch(
        torch.tensor(advantages)[:, None].expand(MASK.shape) * mask,
        mask,
        settings.loss_reduction,
        4,
        settings.max_seq_len,
    )
    loss, _ = PolicyLossRegistry.get(settings.policy_loss_type)(
        torch.tensor(new), torch.tensor(old), reduced, settings, mask
    )
    assert float(loss) == pytest.approx(papers_loss(algorithm, np.exp(new - old), advantages), rel=1e-6)
