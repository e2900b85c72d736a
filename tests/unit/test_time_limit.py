"""The end of a training at its limit of time or money."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.contracts.test_agreement import NO_RETRY, FakeMix
from tests.support.sections import run_spec
from tests.unit.slime_config import worker_config
from xp.backends.slime.worker.rollout_process import Worker
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.worker.time_limit import TimeLimit

HOUR = 3600.0


def limit_of(seconds: float, key: str, every: int) -> TimeLimit:
    return TimeLimit(seconds, key, run_spec(training__checkpoint_every=every).training)


def left(path: Path, *lines: tuple[int, int, float, float, float]) -> Path:
    """A metrics file; a line's attempt, step, age in hours, and hours of the step and of the start before it."""
    now = time.time()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for attempt, step, age, step_h, start_h in lines:
            start = {"time/start_s": start_h * HOUR} if start_h else {}
            named = {"step": step, "time": now - age * HOUR, "stage": "train", "attempt": attempt}
            file.write(json.dumps({**named, "time/step_s": step_h * HOUR, **start}) + "\n")
        file.write(json.dumps({"step": 9, "time": now, "stage": "evaluate_during", "attempt": 1}) + "\n")
    return path


# Attempt 1: a start of 0.5 h and two steps of 1 h. Attempt 2: a start of 0.5 h, a step of 1 h, and 0.25 h since then.
TWO = ((1, 1, 9.0, 1.0, 0.5), (1, 2, 8.0, 1.0, 0.0), (2, 3, 0.25, 1.0, 0.5))
USED_H = 2.5 + 1.75


@pytest.mark.parametrize(("every", "step"), [(1, 3), (3, 3)])
def test_it_ends_where_the_next_checkpoint_is_too_late(every: int, step: int, tmp_path: Path) -> None:
    file = left(tmp_path / "metrics.jsonl", *TWO)
    enough = USED_H + every * 1.0
    limit_of((enough + 0.01) * HOUR, "k", every).check(step, file, 2)
    with pytest.raises(XpError, match=r"after step 3.*it took 4\.25 h.*beyond training\.max_hours=1") as caught:
        limit_of((enough - 0.01) * HOUR, "training.max_hours=1", every).check(step, file, 2)
    assert caught.value.code is ExitCode.LIMIT


def test_a_step_without_a_checkpoint_ends_nothing(tmp_path: Path) -> None:
    file = left(tmp_path / "metrics.jsonl", *TWO)
    limit_of(1.0, "k", 2).check(3, file, 2)
    with pytest.raises(XpError):
        limit_of(1.0, "k", 2).check(2, file, 2)


def test_a_new_attempt_counts_the_earlier_ones_and_not_the_pause(tmp_path: Path) -> None:
    file = left(tmp_path / "metrics.jsonl", *TWO)
    limit_of((USED_H - 0.25 + 1.01) * HOUR, "k", 1).check(3, file, 3)
    with pytest.raises(XpError):
        limit_of((USED_H - 0.25 + 0.99) * HOUR, "k", 1).check(3, file, 3)
    limit_of(1.0, "k", 1).check(1, tmp_path / "none.jsonl", 1)


def test_the_stricter_of_time_and_money_is_the_limit() -> None:
    def limit(*words: str) -> tuple[float, str] | None:
        found = TimeLimit.of(compose(words))
        return found and (found.seconds, found.key)

    price = "hardware.usd_per_hour=4"
    assert limit() is None
    assert limit("training.max_hours=3") == (3 * HOUR, "training.max_hours=3")
    of_money = (2.5 * HOUR, "training.budget_usd=10 at 4 USD an hour")
    assert limit("training.max_hours=3", "training.budget_usd=10", price) == of_money
    assert limit("training.max_hours=2", "training.budget_usd=10", price) == (2 * HOUR, "training.max_hours=2")


def test_slime_ends_at_the_rollout_after_a_checkpoint(tmp_path: Path) -> None:
    limits = {"training__max_hours": 1 / 3600, "training__checkpoint_every": 2}
    config = worker_config(tmp_path, 1, **limits)
    left(tmp_path / config.places.metrics, (1, 1, 0.2, 1.0, 0.0), (1, 2, 0.1, 1.0, 0.0))
    own = Worker(config, FakeMix(NO_RETRY), None)  # type: ignore[arg-type]
    own.check_time(0)
    own.check_time(1)
    with pytest.raises(XpError, match="after step 2"):
        own.check_time(2)
