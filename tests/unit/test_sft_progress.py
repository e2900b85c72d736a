"""A fine-tuning prints its progress: updates, loss, tokens per second and the time left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xp.episode.metrics_file import MetricsFile
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
