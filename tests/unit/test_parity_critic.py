"""The critic of the measure's reference, by hand; and the processes in which a trainer is measured."""

from __future__ import annotations

import pytest
import torch

from tools.parity.critic import generalized, value_errors
from tools.parity.recorded import CriticRule

VALUES = [
    torch.tensor([0.5, 9.0, 0.25, 1.0], dtype=torch.float64),
    torch.tensor([2.0, 3.0], dtype=torch.float64),
]
MASKS = [
    torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64),
    torch.zeros(2, dtype=torch.float64),
]


def test_returns_step_over_a_tools_token_and_leave_out_a_void_episode() -> None:
    advantages, returns = generalized(
        CriticRule(0.5, 0.4, 0.1, 0.5),
        [1.0, 0.0],
        VALUES,
        MASKS,
    )
    # Errors of the three trained tokens, from the last: 1 - 1, 0.5 x 1 - 0.25, 0.5 x 0.25 - 0.5.
    found = [-0.375 + 0.2 * 0.25 + 0.04 * 0.0, 0.25 + 0.2 * 0.0, 0.0]
    assert returns[0].tolist() == pytest.approx(
        [found[0] + 0.5, 0.0, found[1] + 0.25, found[2] + 1.0]
    )
    own = torch.tensor(found, dtype=torch.float64)
    wanted = ((own - own.mean()) / own.std()).tolist()
    assert advantages[0].tolist() == pytest.approx([wanted[0], 0.0, *wanted[1:]])
    assert advantages[1].tolist() == returns[1].tolist() == [0.0, 0.0]


def test_an_error_is_the_larger_of_plain_and_clipped() -> None:
    now, old, returns = (torch.tensor(one) for one in ([1.0, 1.0], [0.0, 0.0], [1.0, 3.0]))
    assert value_errors(CriticRule(1.0, 1.0, 0.5, 0.5), now, old, returns).tolist() == [
        0.5**2 / 2,
        2.5**2 / 2,
    ]
