"""Advantages, returns and loss of Slime's critic, as xp's flags and functions set it, against NumPy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.sections import run_spec
from tests.support.slime_critic import PPO, papers, papers_of_step
from tests.trainers.slime_setup import needs_slime, worker_config
from tests.trainers.slime_update import MASKS, arguments, batch_of, drawn, megatron
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
from xp.backends.slime.worker.gae import over_trained_tokens
from xp.backends.slime.worker.train import critic_role
from xp.backends.slime.worker.training import enter
from xp.composition import compose
from xp.worker.slime_names import OVER_TRAINED_TOKENS

pytestmark = needs_slime


@pytest.fixture(scope="module", autouse=True)
def _groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with megatron(tmp_path_factory.mktemp("groups")):
        yield


def test_slimes_own_recursions_are_the_papers_formula() -> None:
    import torch
    from slime.utils.ppo_utils import chunked_gae, get_advantages_and_returns_batch, vanilla_gae

    values = np.random.default_rng(3).normal(size=300)
    expected = papers(values, 0.7, 0.97, 0.9)
    rewards = torch.zeros(1, 300)
    rewards[0, -1] = 0.7
    rows = torch.tensor(values, dtype=torch.float32)[None]
    for recursion in (vanilla_gae, chunked_gae):
        advantages, returns = recursion(rewards, rows, 0.97, 0.9)
        assert advantages[0].numpy() == pytest.approx(expected[0], abs=1e-4)
        assert returns[0].numpy() == pytest.approx(expected[1], abs=1e-4)
    (advantages,), (returns,) = get_advantages_and_returns_batch(
        [310], [300], rows, rewards, 0.97, 0.9
    )
    assert advantages.numpy() == pytest.approx(expected[0], abs=1e-4)
    assert returns.numpy() == pytest.approx(expected[1], abs=1e-4)


def roles(root: Path, *, is_resumed: bool = False) -> tuple[Any, Any]:
    """Slime's arguments for the policy's processes and for the critic's, after its init has called xp's function."""
    from slime.observability import logging_utils
    from slime.utils.arguments import parse_megatron_role_args

    base = arguments(root, *PPO)
    path = root / "worker.json"
    own = compose(PPO).algorithm
    keys = {name: getattr(own, name) for name in ("estimator", "advantage_scale", "critic")}
    path.write_text(worker_config(root, **keys).to_json())
    setattr(base, WORKER_ATTRIBUTE, str(path))
    config = critic_role(
        run_spec(training__critic_learning_rate=3e-5, training__warmup_updates=0).training,
        root / "runs/r/critic",
        is_resumed=is_resumed,
    )
    Path(base.megatron_config_path).write_text(json.dumps(config))
    made = [
        parse_megatron_role_args(base, base.megatron_config_path, role)
        for role in ("actor", "critic")
    ]
    native = logging_utils.log
    try:
        for args in made:
            enter(args)
    finally:
        logging_utils.log = native
    return made[0], made[1]


def test_slimes_parser_makes_a_critic_of_the_role_that_xp_writes(tmp_path: Path) -> None:
    policy, critic = roles(tmp_path)
    assert (policy.use_critic, policy.offload_train, policy.num_critic_only_steps) == (
        True,
        True,
        0,
    )
    assert policy.gamma == 0.97
    assert policy.lambd == 0.9
    assert policy.value_clip == 0.3
    assert policy.lr == 1e-6
    assert critic.lr == 3e-5
    assert policy.save == str(tmp_path / "runs/r/checkpoints")
    assert critic.save == str(tmp_path / "runs/r/critic")
    # Both begin with the converted model, whose output layer Slime replaces for the critic; the policy's is tied here.
    assert policy.load == critic.load == policy.ref_load
    assert (
        policy.untie_embeddings_and_output_weights,
        critic.untie_embeddings_and_output_weights,
    ) == (False, True)
    assert (
        policy.custom_advantage_function_path
        == critic.custom_advantage_function_path
        == OVER_TRAINED_TOKENS
    )
    assert roles(tmp_path, is_resumed=True)[1].load == str(tmp_path / "runs/r/critic")


def test_advantages_skip_tool_tokens_and_void_episodes_in_both_roles(tmp_path: Path) -> None:
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns

    step = drawn(5)
    advantages, returns = papers_of_step(step)
    trained = np.concatenate([own[mask == 1] for own, mask in zip(advantages, MASKS, strict=True)])
    policy, critic = roles(tmp_path)
    for args in (policy, critic):
        data = batch_of(step)
        compute_advantages_and_returns(args, data)
        for at, mask in enumerate(MASKS):
            whitened = (advantages[at] - trained.mean()) / np.sqrt(trained.var(ddof=1) + 1e-8)
            assert data["advantages"][at].numpy()[mask == 1] == pytest.approx(
                whitened[mask == 1], abs=1e-4
            )
            assert data["returns"][at].numpy() == pytest.approx(returns[at], abs=1e-5)


def test_a_step_of_void_episodes_alone_has_advantages_of_zero(tmp_path: Path) -> None:
    import torch

    data: dict[str, Any] = {
        "values": [torch.ones(1), torch.ones(2)],
        "loss_masks": [torch.zeros(1, dtype=torch.int), torch.zeros(2, dtype=torch.int)],
        "rewards": [0.0, 0.0],
        "total_lengths": [4, 5],
        "response_lengths": [1, 2],
        "num_microbatches": [1],
        "micro_batch_indices": [[0, 1]],
        "rollout_mask_sums": torch.zeros(2),
        "global_batch_sizes": [2],
    }
    over_trained_tokens(arguments(tmp_path, "algorithm=ppo", "backend.convert_model=true"), data)
    assert [one.tolist() for one in data["advantages"]] == [[0.0], [0.0, 0.0]]


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_critics_loss_is_ppos_clipped_error_over_the_policys_tokens(
    aggregation: str, tmp_path: Path
) -> None:
    import torch
    from slime.backends.megatron_utils.loss import loss_function

    step = drawn(7)
    args = arguments(tmp_path, *PPO, f"algorithm.loss_aggregation={aggregation}")
    args.loss_type = "value_loss"  # as Slime's train_critic sets it
    returns = papers_of_step(step)[1]
    batch = batch_of(step) | {
        "returns": [torch.tensor(one, dtype=torch.float32) for one in returns]
    }
    # The first column stands for what the output layer of the critic gives.
    outputs = torch.tensor(
        np.concatenate(step.logits)[None, :, :1], dtype=torch.float32, requires_grad=True
    )
    loss, normalizer, _ = loss_function(args, batch, 1, len(MASKS), outputs)
    loss.backward()
    assert outputs.grad is not None
    expected = 0.0
    wanted = []
    sizes = [max(1, int(mask.sum())) for mask in MASKS]
    for at, mask in enumerate(MASKS):
        weight = mask / (sum(sizes) if aggregation == "token_mean" else sizes[at] * len(MASKS))
        now = step.logits[at][-len(mask) - 1 : -1, 0]
        cut = step.values[at] + np.clip(now - step.values[at], -0.3, 0.3)
        errors = np.maximum((now - returns[at]) ** 2, (cut - returns[at]) ** 2)
        slope = np.where(
            (now - returns[at]) ** 2 >= (cut - returns[at]) ** 2, 2 * (now - returns[at]), 0.0
        )
        expected += float((errors * weight).sum())
        gradient = np.zeros(len(step.logits[at]))
        gradient[-len(mask) - 1 : -1] = slope * weight
        wanted.append(gradient)
    assert float(loss.detach() / normalizer) == pytest.approx(expected, rel=1e-4)
    assert (outputs.grad[0, :, 0] / normalizer).numpy() == pytest.approx(
        np.concatenate(wanted), abs=1e-5
    )
