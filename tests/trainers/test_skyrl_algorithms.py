"""Advantages, policy loss and its gradient of a small batch through SkyRL's own functions, against the papers' formulas
in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.importance import PAIRS, planted
from tests.support.skyrl_trainer import SMALL, UIDS, output, trainer
from tests.trainers.skyrl_parts import train_config
from xp.worker.importance import weigh

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
    if algorithm in ("grpo", "dapo", "gspo", "cispo", "dual"):
        return (centred / (groups.std(1, keepdims=True, ddof=1) + 1e-6)).ravel()
    if algorithm == "rloo":
        return (groups - (groups.sum(1, keepdims=True) - groups) / 3).ravel()
    return centred.ravel()


DUAL_CLIP = 1.25
BOUNDS = {"dapo": (0.8, 1.28), "gspo": (1 - 3e-4, 1 + 4e-4), "cispo": (0.0, 5.0)}


def papers_loss(
    algorithm: str, new: np.ndarray, old: np.ndarray, advantages: np.ndarray
) -> tuple[float, np.ndarray]:
    """And its gradient by the log-probabilities `new`, both of shape (episodes, tokens).

    GSPO (2507.18071, equations 5, 7 and 10): the ratio is exp of an episode's mean log-ratio, and the loss the mean
    over episodes. CISPO (2506.13585, equations 4 and 5): the clipped ratio is a constant weight of the log-probability.
    Dual-clip PPO (1912.09729, equation 5): the loss of a negative advantage is bounded.
    """
    low, high = BOUNDS.get(algorithm, (0.8, 1.2))
    by_token = advantages[:, None]
    log_ratio = (new - old) * MASK
    if algorithm == "gspo":
        log_ratio = log_ratio.sum(1, keepdims=True) / NUM_TOKENS[:, None] * np.ones_like(MASK)
    ratio = np.exp(log_ratio)
    if algorithm == "cispo":
        weight = -np.clip(ratio, low, high) * by_token * MASK / NUM_TOKENS.sum()
        return float((weight * new).sum()), weight
    share = {
        "gspo": MASK / (NUM_TOKENS[:, None] * len(REWARDS)),
        "dr_grpo": MASK / (len(REWARDS) * MAX_RESPONSE_TOKENS),
        "rloo": MASK / (len(REWARDS) * MAX_RESPONSE_TOKENS),
    }.get(algorithm, MASK / NUM_TOKENS.sum())
    plain = ratio * by_token
    clipped = np.clip(ratio, low, high) * by_token
    if algorithm == "dual":
        least = np.where(by_token < 0, DUAL_CLIP * by_token, -np.inf)
        gradient = np.where(
            (plain <= clipped) & (plain > least),
            -plain * share,
            0.0,
        )
        return float((-np.maximum(np.minimum(plain, clipped), least) * share).sum()), gradient
    # A clipped ratio is a constant. GSPO's is of all its episode's log-probabilities, each of which has 1 / tokens of
    # it, and all of the episode's tokens have it: so that a token's gradient is that of its own ratio.
    return float((-np.minimum(plain, clipped) * share).sum()), np.where(
        plain <= clipped, -plain * share, 0.0
    )


@pytest.fixture(scope="module", params=["grpo", "dapo", "dr_grpo", "rloo", "gspo", "cispo", "dual"])
def algorithm(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(algorithm: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    dual = ("algorithm=grpo", f"algorithm.dual_clip={DUAL_CLIP}")
    return trainer(
        tmp_path_factory.mktemp(algorithm),
        train_config(*SMALL, *(dual if algorithm == "dual" else (f"algorithm={algorithm}",))),
    )


def test_advantages_are_the_papers(made: Any, algorithm: str) -> None:
    generated, uids = made.postprocess_generator_output(output(list(REWARDS)), UIDS)
    data = made.convert_to_training_input(generated, uids)
    data["values"] = None
    found = made.compute_advantages_and_returns(data)["advantages"][:, 0].numpy()
    assert found == pytest.approx(papers_advantages(algorithm), abs=1e-5)


def test_the_policy_loss_and_its_gradient_are_the_papers(made: Any, algorithm: str) -> None:
    import torch
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        PolicyLossRegistry,
        apply_loss_reduction_to_advantages_minibatch,
    )

    settings = made.cfg.trainer.algorithm
    drawn = np.random.default_rng(0)
    # Far enough apart that CISPO's bound of 5 is passed too.
    spread = 1.5 if algorithm == "cispo" else 0.3
    old = drawn.normal(-1.0, spread, MASK.shape)
    new = drawn.normal(-1.0, spread, MASK.shape)
    advantages = papers_advantages(algorithm)
    mask = torch.tensor(MASK)
    reduced = apply_loss_reduction_to_advantages_minibatch(
        torch.tensor(advantages)[:, None].expand(MASK.shape) * mask,
        mask,
        settings.loss_reduction,
        4,
        settings.max_seq_len,
    )
    trained = torch.tensor(new, requires_grad=True)
    loss, metrics = PolicyLossRegistry.get(settings.policy_loss_type)(
        trained, torch.tensor(old), reduced, settings, mask
    )
    loss.backward()
    expected, gradient = papers_loss(algorithm, new, old, advantages)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert trained.grad is not None
    assert trained.grad.numpy() == pytest.approx(gradient, rel=1e-6, abs=1e-12)
    assert 0 < metrics["clip_ratio"] < 1
    if algorithm == "dual":
        assert papers_loss("grpo", new, old, advantages)[0] > expected + 1e-3, (
            "the bound is at work"
        )
    # What is clipped teaches nothing, but under CISPO.
    is_silent = (trained.grad.numpy() == 0) & (MASK > 0)
    assert is_silent.any() == (algorithm != "cispo")


@pytest.mark.parametrize(("weight", "left_out_by"), PAIRS)
def test_skyrls_own_weights_are_xps_at_and_beyond_the_bounds(
    weight: str, left_out_by: str, tmp_path: Path
) -> None:
    import torch
    from skyrl.backends.skyrl_train.utils.off_policy_correction_utils import (
        compute_off_policy_correction,
    )

    own = (f"algorithm.importance_correction={weight}", f"algorithm.importance_mask={left_out_by}")
    config = train_config(
        *SMALL,
        *own,
        "algorithm.importance_upper=2",
        "algorithm.mask_lower=0.5",
    )
    settings = trainer(tmp_path, config).cfg.trainer.algorithm.off_policy_correction
    gaps, mask = planted()
    gaps = gaps.nan_to_num()
    ratio, _, kept = compute_off_policy_correction(
        gaps,
        torch.zeros_like(gaps),
        mask,
        settings,
    )
    expected = weigh(config.spec.algorithm, gaps, mask).weights
    found = (kept * (1 if ratio is None else ratio)).double()
    # SkyRL computes the ratio in float32, and cuts its logarithm at 20.
    torch.testing.assert_close(found, expected * mask, rtol=1e-6, atol=1e-8)
    if left_out_by != "none":
        assert torch.equal(found == 0, expected * mask == 0)
