"""REINFORCE++, GAE, a user's own function and the critic's loss inside SkyRL's trainer, against formulas in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.skyrl_trainer import SMALL, UIDS, trainer
from tests.trainers.skyrl_parts import train_config

PROMPT = [10, 11]
LONGEST = 6


@dataclass(frozen=True)
class EpisodeFacts:
    """An episode; `mask` is 1 where the policy wrote, and a reward of None is void."""

    mask: tuple[int, ...]
    reward: float | None


SINGLE_TURN = [
    EpisodeFacts((1,) * length, reward)
    for length, reward in zip(
        (1, 2, 6, 3, 2, 5, 3, 2), (1.0, 0.25, 0.0, 0.5, 0.25, 0.75, 0.125, 0.25), strict=True
    )
]
WITH_TOOLS = [
    EpisodeFacts((1, 0, 0, 1), 1.0),
    EpisodeFacts((1, 1, 0, 1, 1), None),
    EpisodeFacts((1, 0, 1, 0, 0, 0), 0.5),
    EpisodeFacts((1, 1), 0.0),
    EpisodeFacts((1, 1, 1), 0.75),
    EpisodeFacts((1, 0, 0, 0, 1, 1), 0.25),
    EpisodeFacts((1,), 0.0),
    EpisodeFacts((1, 1, 0, 0, 1), 1.0),
]
"""The third ends with what a tool said."""


def batch(made: Any, episodes: Sequence[EpisodeFacts]) -> Any:
    """SkyRL's training batch, by its own conversion: (episodes, LONGEST), each episode at the right."""
    output = {
        "prompt_token_ids": [PROMPT] * len(episodes),
        "response_ids": [list(range(20, 20 + len(one.mask))) for one in episodes],
        "rewards": [[0.0] * (len(one.mask) - 1) + [one.reward or 0.0] for one in episodes],
        "loss_masks": [
            [0] * len(one.mask) if one.reward is None else list(one.mask) for one in episodes
        ],
        "stop_reasons": ["void" if one.reward is None else "stop" for one in episodes],
        "rollout_logprobs": None,
    }
    generated, uids = made.postprocess_generator_output(output, UIDS)
    data = made.convert_to_training_input(generated, uids)
    data["values"] = None
    return data


def made_trainer(path: Path, *overrides: str) -> Any:
    return trainer(path, train_config(*SMALL, *overrides))


def computed(
    made: Any, episodes: Sequence[EpisodeFacts], values: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns, at each place of the batch."""
    import torch

    data = batch(made, episodes)
    if values is not None:
        data["values"] = torch.tensor(values, dtype=torch.float32)
    data = made.compute_advantages_and_returns(data)
    return data["advantages"].numpy(), data["returns"].numpy()


def trained_mask(episodes: Sequence[EpisodeFacts]) -> np.ndarray:
    """(episodes, LONGEST), 1 where the policy wrote and the episode is valid."""
    mask = np.zeros((len(episodes), LONGEST))
    for row, one in enumerate(episodes):
        if one.reward is not None:
            mask[row, LONGEST - len(one.mask) :] = one.mask
    return mask


def whitened(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    chosen = values[mask > 0]
    return np.where(
        mask > 0,
        (values - chosen.mean()) / np.sqrt(chosen.var(ddof=1) + 1e-8),
        0.0,
    )


def test_reinforce_pp_whitens_the_trained_tokens_of_valid_episodes(tmp_path: Path) -> None:
    from skyrl.backends.skyrl_train.utils.ppo_utils import (
        compute_reinforce_plus_plus_outcome_advantage,
    )

    made = made_trainer(tmp_path, "algorithm=reinforce_pp")
    found, _ = computed(made, WITH_TOOLS)
    rewards = np.array([one.reward or 0.0 for one in WITH_TOOLS])
    mask = trained_mask(WITH_TOOLS)
    assert found == pytest.approx(whitened(rewards[:, None] * np.ones_like(mask), mask), abs=1e-5)
    data = batch(made, WITH_TOOLS)
    skyrls, _ = compute_reinforce_plus_plus_outcome_advantage(
        data["rewards"], data["response_mask"], gamma=1.0
    )
    assert np.abs(found - skyrls.numpy())[mask > 0].max() > 0.05, (
        "SkyRL's own no longer takes void episodes in"
    )


def test_a_users_advantages_reach_the_trained_tokens_of_valid_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_skyrls_user.py").write_text(
        "def first_come(episodes):\n    return [one.reward * 2 - place for place, one in enumerate(episodes)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = made_trainer(
        tmp_path, "algorithm=custom", "algorithm.advantage_fn=of_skyrls_user:first_come"
    )
    found, _ = computed(made, WITH_TOOLS)
    expected = np.zeros(len(WITH_TOOLS))
    for place, row in enumerate(
        row for row, one in enumerate(WITH_TOOLS) if one.reward is not None
    ):
        expected[row] = (WITH_TOOLS[row].reward or 0.0) * 2 - place
    assert found == pytest.approx(expected[:, None] * trained_mask(WITH_TOOLS))


def papers_gae(
    episodes: Sequence[EpisodeFacts], values: np.ndarray, gamma: float, lam: float
) -> tuple[np.ndarray, np.ndarray]:
    """Equations 11 and 16 of arXiv:1506.02438 over an episode's own tokens, one after the other."""
    advantages = np.zeros_like(values)
    returns = np.zeros_like(values)
    for row, one in enumerate(episodes):
        places = [
            LONGEST - len(one.mask) + at
            for at, wrote in enumerate(one.mask)
            if wrote and one.reward is not None
        ]
        for at, place in enumerate(places):
            future = 0.0
            for steps, later in enumerate(places[at:]):
                is_last = later == places[-1]
                following = 0.0 if is_last else values[row, places[at + steps + 1]]
                delta = (
                    (one.reward or 0.0 if is_last else 0.0) + gamma * following - values[row, later]
                )
                future += (gamma * lam) ** steps * delta
            advantages[row, place] = future
            returns[row, place] = future + values[row, place]
    return advantages, returns


@pytest.mark.parametrize(
    ("episodes", "gamma", "lam"),
    [
        (SINGLE_TURN, 0.9, 0.8),
        (WITH_TOOLS, 1.0, 0.95),
        (WITH_TOOLS, 0.9, 0.8),
        (WITH_TOOLS, 1.0, 1.0),
        (WITH_TOOLS, 0.97, 0.0),
    ],
)
def test_gae_is_the_recursion_over_what_the_policy_wrote(
    tmp_path: Path, episodes: list[EpisodeFacts], gamma: float, lam: float
) -> None:
    critic = f"algorithm.critic={{discount: {gamma}, gae_lambda: {lam}, value_clip: 0.2}}"
    made = made_trainer(tmp_path, "algorithm=ppo", critic)
    values = np.random.default_rng(0).normal(
        0.3,
        0.5,
        (len(episodes), LONGEST),
    )
    found, returns = computed(made, episodes, values)
    expected, expected_returns = papers_gae(episodes, values, gamma, lam)
    assert returns == pytest.approx(expected_returns, abs=1e-5)
    assert found == pytest.approx(whitened(expected, trained_mask(episodes)), abs=1e-4)


def test_padding_tools_and_void_episodes_touch_no_advantage(tmp_path: Path) -> None:
    made = made_trainer(tmp_path, "algorithm=ppo")
    values = np.random.default_rng(2).normal(
        0.3,
        0.5,
        (len(WITH_TOOLS), LONGEST),
    )
    wild = np.where(trained_mask(WITH_TOOLS) > 0, values, 1e6)
    assert np.array_equal(
        np.stack(computed(made, WITH_TOOLS, values)),
        np.stack(
            computed(
                made,
                WITH_TOOLS,
                wild,
            )
        ),
    )


class Dispatched:
    """SkyRL's dispatch, which keeps the batches that the workers of a model would get."""

    def __init__(self) -> None:
        self.updates: list[Any] = []

    def get_lcm_dp_size(self) -> int:
        return 1

    def stage_data(self, model: str, data: Any, boundaries: list[tuple[int, int]]) -> list[Any]:
        del model
        self.updates = [data[begin:end] for begin, end in boundaries]
        return []


def critics_batches(
    path: Path, episodes: Sequence[EpisodeFacts], values: np.ndarray, *overrides: str
) -> list[Any]:
    import torch

    made = made_trainer(
        path,
        "algorithm=ppo",
        "training.updates_per_step=2",
        *overrides,
    )
    made.dispatch = Dispatched()
    data = batch(made, episodes)
    data["values"] = torch.tensor(values, dtype=torch.float32)
    data = made.compute_advantages_and_returns(data)
    mask = data["loss_mask"].clone()
    made._execute_training_step("critic", data)
    assert (data["loss_mask"] == mask).all(), "the policy's update comes after the critic's"
    return made.dispatch.updates


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_the_critics_loss_is_the_clipped_one_over_what_teaches_it(
    tmp_path: Path, aggregation: str
) -> None:
    """PPO's 0.5 x max of the clipped and the plain square, per update aggregated as the policy's loss, the same however
    an update is cut into micro-batches, which SkyRL averages."""
    import torch

    from xp.backends.skyrl.worker.advantages import critic_loss

    draw = np.random.default_rng(3)
    shape = (len(WITH_TOOLS), LONGEST)
    old = draw.normal(0.3, 0.5, shape)
    new = draw.normal(0.3, 0.5, shape)
    returns = papers_gae(WITH_TOOLS, old, 1.0, 0.95)[1]
    mask = trained_mask(WITH_TOOLS)
    override = f"algorithm.loss_aggregation={aggregation}"
    updates = critics_batches(tmp_path, WITH_TOOLS, old, override)
    settings = made_trainer(
        tmp_path,
        "algorithm=ppo",
        override,
    ).cfg.trainer.algorithm
    assert len(updates) == 2
    for rows, data in zip((slice(0, 4), slice(4, 8)), updates, strict=True):
        clipped = old[rows] + np.clip(new[rows] - old[rows], -0.2, 0.2)
        square = np.maximum((clipped - returns[rows]) ** 2, (new[rows] - returns[rows]) ** 2)
        taught = [row for row in range(4) if mask[rows][row].any()]
        sums = np.array([(square[row] * mask[rows][row]).sum() for row in taught])
        tokens = np.array([mask[rows][row].sum() for row in taught])
        wanted = {
            "token_mean": sums.sum() / tokens.sum(),
            "sequence_mean": (sums / tokens).mean(),
            "constant": sums.mean() / (settings.max_seq_len or 1),
        }[aggregation]
        values = torch.tensor(new[rows])
        for micro in (1, 2, 4):
            losses = [
                critic_loss(
                    values[begin : begin + micro],
                    data["values"][begin : begin + micro].double(),
                    data["returns"][begin : begin + micro],
                    settings,
                    data["loss_mask"][begin : begin + micro],
                )[0]
                for begin in range(0, 4, micro)
            ]
            assert float(sum(losses)) / len(losses) == pytest.approx(0.5 * wanted, rel=1e-5)


def test_the_policys_mean_over_episodes_is_without_void_ones(tmp_path: Path) -> None:
    """Each of an update's valid episodes has the same share, and the shares make 1."""
    made = made_trainer(tmp_path, "algorithm=gspo", "training.updates_per_step=2")
    made.dispatch = Dispatched()
    import torch

    from xp.backends.skyrl.worker.trainer import SHARES, _shares

    data = batch(made, WITH_TOOLS)
    data["advantages"] = torch.ones(len(WITH_TOOLS), LONGEST)
    data.metadata[SHARES] = _shares(data)
    made._execute_training_step("policy", data)
    shares = [
        (update["advantages"] * update["loss_mask"]).sum(-1).tolist()
        for update in made.dispatch.updates
    ]
    assert shares[0] == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])
    assert shares[1] == pytest.approx([1 / 4] * 4)


def test_skyrls_own_trainer_fails_on_what_xp_computes(tmp_path: Path) -> None:
    from skyrl.train.trainer import RayPPOTrainer

    made = made_trainer(tmp_path, "algorithm=reinforce_pp")
    with pytest.raises(RuntimeError, match="XpTrainer"):
        RayPPOTrainer.compute_advantages_and_returns(made, batch(made, SINGLE_TURN))


@pytest.mark.parametrize("kind", ["k1", "k2"])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_penalty_in_the_reward_is_of_the_trained_tokens(
    tmp_path: Path, algorithm: str, kind: str
) -> None:
    """Of planted log-probabilities: an episode's reward minus coefficient x KL, tools' and void tokens left out."""
    import torch

    words = (f"algorithm={algorithm}", f"algorithm.kl_estimator={kind}", "training.kl_coef=0.3")
    made = made_trainer(tmp_path, *words, "algorithm.use_kl_in_reward=true")
    assert not made.cfg.trainer.algorithm.use_kl_loss
    draw = np.random.default_rng(1)
    own, reference, values = (
        draw.normal(
            -1.0,
            0.5,
            (len(WITH_TOOLS), LONGEST),
        )
        for _ in range(3)
    )
    data = batch(made, WITH_TOOLS)
    for name, planted in (
        ("action_log_probs", own),
        ("base_action_log_probs", reference),
        ("values", values),
    ):
        data[name] = torch.tensor(planted)
    data["rewards"] = data["rewards"].double()
    found = made.compute_advantages_and_returns(made.apply_reward_kl_penalty(data))[
        "advantages"
    ].numpy()
    mask = trained_mask(WITH_TOOLS)
    gap = own - reference
    penalty = 0.3 * (gap if kind == "k1" else gap**2 / 2) * mask
    if algorithm == "grpo":
        totals = np.array([one.reward or 0.0 for one in WITH_TOOLS]) - penalty.sum(-1)
        expected = np.zeros(len(WITH_TOOLS))
        for rows in ([0, 2, 3], [4, 5, 6, 7]):
            expected[rows] = (totals[rows] - totals[rows].mean()) / (
                totals[rows].std(ddof=1) + 1e-6
            )
        for row, one in enumerate(WITH_TOOLS):
            assert found[row][mask[row] > 0] == pytest.approx(
                [expected[row]] * sum(one.mask) * bool(one.reward is not None), abs=1e-5
            )
        return
    rewards = -penalty
    for row, one in enumerate(WITH_TOOLS):
        if one.reward is not None:
            rewards[row, np.flatnonzero(mask[row])[-1]] += one.reward
    raw = np.zeros_like(values)
    for row in range(len(WITH_TOOLS)):
        places = np.flatnonzero(mask[row])
        later = 0.0
        for at in reversed(range(len(places))):
            following = values[row, places[at + 1]] if at + 1 < len(places) else 0.0
            later = rewards[row, places[at]] + following - values[row, places[at]] + 0.95 * later
            raw[row, places[at]] = later
    assert found == pytest.approx(whitened(raw, mask), abs=1e-4)
