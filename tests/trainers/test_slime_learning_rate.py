"""Rates of a warm-up, by Megatron's own scheduler as Slime makes it; steps whose model is exported."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainers.slime_setup import needs_slime, worker_config
from tests.trainers.slime_update import arguments
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
from xp.backends.slime.worker.steps import half_of
from xp.backends.slime.worker.training import enter
from xp.episode.metrics_file import read_metrics
from xp.worker.learning_rate import learning_rate_factor

pytestmark = needs_slime
UPDATES = 8
RATE = "training.learning_rate=2e-6"


@pytest.mark.parametrize(
    ("schedule", "minimum"),
    [("constant", 0.0), ("linear", 0.0), ("cosine", 0.0), ("linear", 0.1), ("cosine", 0.1)],
)
@pytest.mark.parametrize("warmup", [0, 1, 4, UPDATES])
def test_every_update_has_the_rate_that_xp_means(
    tmp_path: Path, schedule: str, minimum: float, warmup: int
) -> None:
    import torch
    from slime.backends.megatron_utils.model import get_optimizer_param_scheduler

    args = arguments(
        tmp_path,
        *(f"training.num_steps={UPDATES}", "training.updates_per_step=1", RATE),
        *(f"training.lr_schedule={schedule}", f"training.warmup_updates={warmup}"),
        f"training.min_learning_rate={2e-6 * minimum}",
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler = get_optimizer_param_scheduler(args, optimizer)
    for update in range(UPDATES):
        wanted = 2e-6 * learning_rate_factor(
            schedule,
            warmup,
            UPDATES,
            update,
            minimum,
        )
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)
        scheduler.step(increment=args.global_batch_size)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_resumed_training_has_the_rates_of_its_new_length(tmp_path: Path, schedule: str) -> None:
    import torch
    from slime.backends.megatron_utils.model import get_optimizer_param_scheduler

    made = {}
    for updates in (3, UPDATES):
        args = arguments(
            tmp_path / str(updates),
            *(f"training.num_steps={updates}", "training.updates_per_step=1", RATE),
            *(f"training.lr_schedule={schedule}", "training.warmup_updates=2"),
        )
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.lr)
        made[updates] = optimizer, get_optimizer_param_scheduler(args, optimizer)
    for _ in range(3):
        made[3][1].step(increment=args.global_batch_size)
    # As Megatron's load_checkpoint does, the optimizer first.
    for before, after in zip(made[3], made[UPDATES], strict=True):
        after.load_state_dict(before.state_dict())
    optimizer, scheduler = made[UPDATES]
    for update in range(3, UPDATES):
        wanted = 2e-6 * learning_rate_factor(schedule, 2, UPDATES, update)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)
        scheduler.step(increment=args.global_batch_size)


def test_the_reported_rate_is_that_of_the_update_and_exports_are_at_their_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slime's own log holds the rate after its scheduler's step, which is that of the next update."""
    import torch
    from slime.backends.megatron_utils import actor, model
    from slime.observability import logging_utils

    args = arguments(
        tmp_path,
        "training.num_steps=8",
        "training.updates_per_step=1",
        RATE,
        "training.warmup_updates=4",
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.lr)
    scheduler = model.get_optimizer_param_scheduler(args, optimizer)

    def update(args: Any, *_: Any) -> None:
        scheduler.step(increment=args.global_batch_size)

    exported: list[str] = []
    monkeypatch.setattr(model, "train_one_step", update)
    monkeypatch.setattr(
        actor, "save_hf_model_to_path", lambda _, path, __: exported.append(path.name)
    )
    monkeypatch.setattr(logging_utils, "log", lambda *_: None)
    config = worker_config(tmp_path, steps=5, checkpoint_every=1, export_every=2)
    setattr(args, WORKER_ATTRIBUTE, str(tmp_path / "worker.json"))
    (tmp_path / "worker.json").write_text(config.to_json())
    enter(args)
    for number in range(3):
        half = half_of(config, number)
        half.parent.mkdir(parents=True, exist_ok=True)
        half.write_text('{"began": 0.0, "metrics": {}}')
        model.train_one_step(args, number, 0, None, None, optimizer, scheduler)
        logged = {
            "train/step": number,
            "train/loss": 1.0,
            "train/lr-pg_0": optimizer.param_groups[0]["lr"],
        }
        logging_utils.log(args, logged, step_key="train/step")
    lines = read_metrics(tmp_path / "runs/r/metrics.jsonl", "train")
    assert [line["training/learning_rate"] for line in lines] == pytest.approx(
        [0.5e-6, 1e-6, 1.5e-6]
    )
    # As Slime's actor calls it after each checkpoint (actor.py `save_model`).
    for number in range(5):
        actor.save_hf_model_to_path(args, Path("exports", str(number)), None)
    assert exported == ["1", "3", "4"]
