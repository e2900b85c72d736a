"""The end of a training at its limit of time or money."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.support.sections import PLACES, replace
from tests.unit.slime_config import worker_config
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.worker.time_limit import check_time, limit_of

HOUR = 3600.0


def left(path: Path, *lines: tuple[int, int, float, float, float]) -> Path:
    """A metrics file; a line's attempt, step, age in hours, and hours of the step and of the start before it."""
    now = time.time()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for attempt, step, age, step_h, start_h in lines:
            start = {"time/start_s": start_h * HOUR} if start_h else {}
            named = {"step": step, "time": now - age * HOUR, "stage": "train", "attempt": attempt}
            file.write(json.dumps({**named, "time/step_s": step_h * HOUR, **start}) + "\n")
        file.write(
            json.dumps({"step": 9, "time": now, "stage": "evaluate_during", "attempt": 1}) + "\n"
        )
    return path


# Attempt 1: a start of 0.5 h and two steps of 1 h. Attempt 2: a start of 0.5 h, a step of 1 h, and 0.25 h since then.
TWO = ((1, 1, 9.0, 1.0, 0.5), (1, 2, 8.0, 1.0, 0.0), (2, 3, 0.25, 1.0, 0.5))
USED_H = 2.5 + 1.75


def check(root: Path, hours: float, every: int, step: int, attempt: int) -> None:
    config = worker_config(root, 1, training__max_hours=hours, training__checkpoint_every=every)
    check_time(replace(config, places=replace(config.places, attempt=attempt)), step, root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An outputs root with the two attempts' metrics."""
    left(tmp_path / PLACES.metrics, *TWO)
    return tmp_path


@pytest.mark.parametrize("every", [1, 3])
def test_it_ends_where_the_next_checkpoint_is_too_late(every: int, root: Path) -> None:
    check(root, USED_H + every + 0.01, every, 3, 2)
    with pytest.raises(
        XpError, match=r"after step 3.*it took 4\.25 h.*beyond training\.max_hours=\d"
    ) as caught:
        check(root, USED_H + every - 0.01, every, 3, 2)
    assert caught.value.code is ExitCode.LIMIT


def test_a_step_without_a_checkpoint_ends_nothing(root: Path) -> None:
    check(root, 0.001, 2, 3, 2)
    with pytest.raises(XpError):
        check(root, 0.001, 2, 2, 2)


def test_a_new_attempt_counts_the_earlier_ones_and_not_the_pause(
    root: Path, tmp_path: Path
) -> None:
    check(root, USED_H - 0.25 + 1.01, 1, 3, 3)
    with pytest.raises(XpError):
        check(root, USED_H - 0.25 + 0.99, 1, 3, 3)
    check(tmp_path / "empty", 0.001, 1, 1, 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), None),
        (("training.max_hours=3",), (3, "training.max_hours=3")),
        (
            ("training.max_hours=3", "training.budget_usd=10"),
            (2.5, "training.budget_usd=10 at 4 USD an hour"),
        ),
        (("training.max_hours=2", "training.budget_usd=10"), (2, "training.max_hours=2")),
    ],
)
def test_the_stricter_of_time_and_money_is_the_limit(
    words: tuple[str, ...], expected: tuple[float, str] | None
) -> None:
    assert limit_of(compose([*words, "hardware.usd_per_hour=4"])) == expected
