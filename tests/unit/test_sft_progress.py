"""A fine-tuning prints its progress: updates, loss, tokens per second and the time left."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xp.backends.slime.worker import sft_hooks
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.worker.demonstrations import Example
from xp.worker.sft import Updates, tokens_of_update


def printed(updates: Updates, first: int, last: int, capsys: pytest.CaptureFixture[str]) -> str:
    for number in range(first, last + 1):
        updates.end(number, 2.0 / number, 1.0, 1e-5, is_last=number == last)
    updates.finish(last, None)
    return capsys.readouterr().err


def test_the_bar_has_updates_loss_speed_and_the_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    updates = Updates(MetricsFile(tmp_path / "metrics.jsonl", "sft", 1), 4, 1000.0)
    lines = printed(updates, 1, 4, capsys).split("\r")
    assert re.search(
        r"sft: +100%.* 4/4 \[\d\d:\d\d<\d\d:\d\d.*loss=0.5000, tokens/s=[\d,]+", lines[-1]
    )


def test_the_tokens_of_an_update_are_those_of_its_episodes() -> None:
    trained = [Example([1] * 10, [1] * 10), Example([1] * 30, [1] * 30)]
    assert tokens_of_update(trained, 8) == 160.0


def test_the_time_of_the_first_update_is_without_the_start(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    updates = Updates(MetricsFile(file, "sft", 1), 2, 10.0)
    updates.start(time.monotonic() - 100)
    updates.start()
    updates.end(1, 2.0, 1.0, 1e-5, is_last=False)
    assert read_metrics(file, "sft")[0]["time/update_s"] < 50


def test_a_resumed_fine_tuning_that_had_ended_writes_no_other_last_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    updates = Updates(MetricsFile(file, "sft", 1), 1, 10.0)
    updates.end(1, 2.0, 1.0, 1e-5, is_last=True)
    updates.finish(1, None)
    again = Updates(MetricsFile(file, "sft", 2), 1, 10.0)
    again.begin(1, 1.5)
    again.finish(1, 1.5)
    (line,) = read_metrics(file, "sft")
    assert line["training/loss"] == 2.0


@pytest.mark.parametrize("held_out", [[], [Example([1, 2], [0, 1])]])
def test_the_first_update_on_slime_has_its_own_time(
    held_out: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slime reports an update's metrics after it; the held-out loss before it is known only then."""
    monkeypatch.setattr(sft_hooks, "held_out_loss", lambda *_: 2.0)
    file = tmp_path / "metrics.jsonl"
    config: Any = SimpleNamespace(
        num_steps=3, root="", metrics_file=lambda stage, _: MetricsFile(file, stage, 1)
    )
    metrics = sft_hooks.SftMetrics(lambda *_: None, config, held_out, 10.0)
    step = metrics.around(lambda *_: time.sleep(0.2))
    optimizer = SimpleNamespace(param_groups=[{}])
    scheduler = SimpleNamespace(get_lr=lambda _: 1e-5)
    for number in range(2):
        step(None, number, None, None, None, optimizer, scheduler)
        metrics(
            None,
            {"train/step": number, "train/loss": 1.0, "train/grad_norm": 1.0},
            "train/step",
        )
    times = [line.get("time/update_s", math.nan) for line in read_metrics(file, "sft")]
    assert times[-2] == pytest.approx(times[-1], abs=0.1)
