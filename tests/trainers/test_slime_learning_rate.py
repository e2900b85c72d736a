"""Rates of a warm-up, by Megatron's own scheduler as Slime makes it."""

from pathlib import Path

import pytest

from tests.trainers.slime_setup import needs_slime
from tests.trainers.slime_update import arguments
from xp.worker.learning_rate import learning_rate_factor

pytestmark = needs_slime
UPDATES = 8


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 1, 4, UPDATES])
def test_every_update_has_the_rate_that_xp_means(tmp_path: Path, schedule: str, warmup: int) -> None:
    import torch
    from slime.backends.megatron_utils.model import get_optimizer_param_scheduler

    args = arguments(
        tmp_path,
        *(f"training.num_steps={UPDATES}", "training.updates_per_step=1", "training.learning_rate=2e-6"),
        *(f"training.lr_schedule={schedule}", f"training.warmup_updates={warmup}"),
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler = get_optimizer_param_scheduler(args, optimizer)
    for update in range(UPDATES):
        wanted = 2e-6 * learning_rate_factor(schedule, warmup, UPDATES, update)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)
        scheduler.step(increment=args.global_batch_size)
