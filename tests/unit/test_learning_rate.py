"""The rate of each update, as xp means it."""

import pytest
import torch
from transformers import get_scheduler

from xp.worker.learning_rate import learning_rate_factor, make_scheduler

UPDATES = 10


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def test_a_warm_up_of_four_begins_at_a_quarter() -> None:
    assert [learning_rate_factor("constant", 4, UPDATES, update) for update in range(6)] == [
        0.25,
        0.5,
        0.75,
        1,
        1,
        1,
    ]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_without_a_warm_up_the_rates_are_those_of_transformers(schedule: str) -> None:
    ours = make_scheduler(schedule, optimizer(), 0, UPDATES, 0.0)
    theirs = get_scheduler(schedule, optimizer(), 0, UPDATES)
    for _ in range(UPDATES):
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr())
        ours.optimizer.step(), ours.step(), theirs.optimizer.step(), theirs.step()


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(
    ("before", "made"), [(UPDATES, 3), (3, 3), (4, 3)], ids=["same", "at the end", "longer"]
)
def test_a_resumed_training_has_the_rates_of_its_new_length(
    schedule: str, before: int, made: int
) -> None:
    """A checkpoint holds the rate of the next update, which is 0 at the old end."""
    first, second = (
        make_scheduler(schedule, optimizer(), 2, number, 0.0) for number in (before, UPDATES)
    )
    for _ in range(made):
        first.optimizer.step(), first.step()
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    for update in range(made, UPDATES):
        expected = learning_rate_factor(schedule, 2, UPDATES, update)
        assert second.get_last_lr() == [expected]
        assert second.optimizer.param_groups[0]["lr"] == expected
        second.optimizer.step(), second.step()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decay_ends_at_the_minimum_of_each_group(schedule: str) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.5)]
    made = make_scheduler(schedule, torch.optim.SGD(groups), 2, UPDATES, 0.1)
    assert made.get_last_lr() == [0.5, 0.25]
    for _ in range(UPDATES):
        made.optimizer.step(), made.step()
    assert made.get_last_lr() == pytest.approx([0.1, 0.1])
