"""The metrics that are the same on every backend."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.episode_facts import played
from xp.episode.metrics import check_health, episode_metrics
from xp.episode.metrics_file import MetricsFile, last_step, read_metrics
from xp.errors import ExitCode, XpError


def test_a_void_episode_counts_in_no_mean_of_rewards() -> None:
    metrics = episode_metrics(
        [played("t", 1.0), played("t", None), played("t", 0.0)],
        3,
        1.0,
    )
    assert metrics["reward/avg_raw_reward"] == 0.5
    assert metrics["episodes/void"] == pytest.approx(1 / 3)


def test_another_threshold_of_a_pass_is_part_of_the_metrics_name() -> None:
    group = [
        played("t", 0.0),
        played("t", 0.2),
        played("u", 0.5),
        played("u", 0.0),
    ]
    metrics = episode_metrics(group, 2, 0.5)
    assert metrics["reward/avg_pass_at_2_from_0.5"] == 0.5
    assert "reward/avg_pass_at_2" not in metrics


def test_a_task_that_a_step_has_twice_is_two_groups() -> None:
    group = [
        *[played("t", 0.0)] * 2,
        *[played("u", 1.0)] * 2,
        played("t", 1.0),
        played("t", None),
    ]
    metrics = episode_metrics(group, 2, 1.0)
    assert metrics["reward/groups_without_variance"] == 1.0
    assert metrics["reward/avg_pass_at_2"] == pytest.approx(2 / 3)


def test_a_mix_has_the_same_metrics_per_environment() -> None:
    metrics = episode_metrics(
        [played("t", 1.0, env="a"), played("u", 0.0, env="b")],
        1,
        1.0,
    )
    assert metrics["a/reward/avg_raw_reward"] == 1.0
    assert metrics["b/reward/avg_raw_reward"] == 0.0


def test_more_void_episodes_than_allowed_stop_the_run_with_the_reasons() -> None:
    half = [played("t", 1.0), played("t", None)]
    check_health(half, 0.5)
    with pytest.raises(XpError, match="1 of 2 episodes are void") as caught:
        check_health(half, 0.49)
    assert caught.value.code is ExitCode.UNHEALTHY


def test_the_last_attempt_wins_and_what_is_no_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsFile(path, "train", 1)
    second = MetricsFile(path, "train", 2)
    for step in (1, 2, 3):
        first.write(step, {"x": step})
    second.write(3, {"x": 30.0})
    with path.open("a") as file:
        file.write(
            '[1]\n{"step": "4", "stage": "train"}\n{"step": 4, "stage": null}\n{"step": 4, "sta'
        )
    assert [(line["step"], line["x"], line["attempt"]) for line in read_metrics(path, "train")] == [
        (1, 1, 1),
        (2, 2, 1),
        (3, 30.0, 2),
    ]


@pytest.mark.parametrize(
    "content", [None, "", '{"step": 2, "sta', '{"step": 0, "stage": "evaluate"}\n']
)
def test_a_training_without_its_earlier_lines_says_so(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_text(content)
    MetricsFile(path, "train", 2).continue_after(3)
    assert [(line["step"], line["attempt"]) for line in read_metrics(path, "train")] == [(3, 2)]
    assert last_step(path) == 3
    (said,) = capsys.readouterr().err.splitlines()
    assert "the metrics of steps 1 to 3 are lost" in said


def test_a_value_that_is_no_number_is_null_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsFile(path, "train", 1).write(1, {"x": float("nan")})
    assert json.loads(path.read_text())["x"] is None


def test_a_line_after_a_torn_one_begins_afresh(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "stage": "train"}\n{"step": 2, "sta')
    MetricsFile(path, "train", 2).write(2, {"loss": 0.5})
    MetricsFile(path, "train", 2).write(3, {"loss": 0.25})
    assert [line["step"] for line in read_metrics(path, "train")] == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 4
