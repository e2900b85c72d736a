"""The parts of GRPOTrainer's means that xp corrects: an episode's share in its rows, and the deviation of rewards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xp.backends.trl.worker.means import SHARE, rescaled, row_parts, shares

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]])
TOOLS = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1]])


def test_the_rows_of_an_episode_share_it_by_their_trained_tokens_and_a_masked_one_has_none() -> (
    None
):
    inputs = {"completion_mask": MASK, "tool_mask": TOOLS}
    assert shares(inputs, [0, 0, 1, 2]).tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 1.0])
    assert shares(inputs, [0, 1, 2, 0]).tolist() == pytest.approx([0.5, 1.0, 0.0, 0.5])


def test_a_micro_batch_is_cut_by_rows_and_numbers_stay_whole() -> None:
    inputs: dict[str, Any] = {
        "completion_mask": MASK,
        SHARE: torch.arange(4),
        "num_items": torch.tensor(7),
        "other": 1,
    }
    parts = row_parts(inputs, 3)
    assert [part[SHARE].tolist() for part in parts] == [[0, 1, 2], [3]]
    assert all((int(part["num_items"]), part["other"]) == (7, 1) for part in parts)


@pytest.mark.parametrize("first", [0, 4])
def test_the_deviation_has_the_epsilon_of_the_other_trainers(first: int) -> None:
    rewards = torch.tensor([1.0, 0.0, 0.5, torch.nan, 0.25, 0.25, 0.25, 0.25], dtype=torch.float64)
    groups = rewards.view(2, 4)
    centred = groups - groups.nanmean(1, keepdim=True)
    deviation = torch.tensor([[0.5], [0.0]], dtype=torch.float64)
    share = slice(first, first + 4)
    trls = torch.nan_to_num(centred / (deviation + 1e-4)).ravel()[share]
    expected = torch.nan_to_num(centred / (deviation + 1e-6)).ravel()[share]
    torch.testing.assert_close(
        rescaled(trls, rewards, share, 4, "group"), expected, rtol=1e-9, atol=0
    )
    assert rescaled(trls, rewards, share, 4, "none") is trls
