"""Metrics reach the trackers while the run goes on, and a tracker that fails is nobody's problem but its own."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import DEADLINE_S, eventually
from xp.errors import ExitCode, XpError
from xp.execution.tracking.base import (
    Opener,
    TrackedRun,
    check_trackers,
    secrets_of,
)
from xp.execution.tracking.mirror import MetricsLine, Mirror, parse_line

LINE = {
    "step": 3,
    "time": 12.5,
    "attempt": 1,
    "stage": "train",
    "loss": 0.5,
    "num": 2,
}


@dataclass
class FakeTracker:
    fails_at: str = ""
    last_time: float = 0.0
    slow_s: float = 0.0
    seen: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def open(self, _: TrackedRun) -> FakeTracker:
        self._perhaps("open")
        return self

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._perhaps("log")
        self.seen.append((step, dict(metrics)))

    def close(self, *, is_success: bool) -> None:
        self._perhaps("close")
        self.ended.append(is_success)

    def _perhaps(self, point: str) -> None:
        time.sleep(self.slow_s if point == "close" else 0)
        if point == self.fails_at:
            raise RuntimeError("the network is down")


def mirror(
    directory: Path, trackers: Mapping[str, FakeTracker], warnings: list[str], **options: Any
) -> Mirror:
    run = TrackedRun("run", 1, "project", {"seed": 1}, directory, {"WANDB_API_KEY": "XPCANARY_key"})
    opened: dict[str, Opener] = {name: tracker.open for name, tracker in trackers.items()}
    options = {"poll_s": 0.01, "close_timeout_s": DEADLINE_S} | options
    return Mirror(directory / "metrics.jsonl", run, opened, warnings.append, **options)


def write(directory: Path, *lines: Mapping[str, Any] | str) -> None:
    with (directory / "metrics.jsonl").open("a") as file:
        file.writelines(
            line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines
        )


@pytest.mark.parametrize(("stage", "prefix"), [("train", ""), ("sft", "sft/")])
def test_a_line_is_its_numbers_and_fine_tuning_has_curves_of_its_own(
    stage: str, prefix: str
) -> None:
    others = {"note": "text", "gone": None, "list": [1], "sft/held_out_loss": 1}
    parsed = parse_line(json.dumps({**LINE, "stage": stage, **others}))
    metrics = {f"{prefix}loss": 0.5, f"{prefix}num": 2.0, "sft/held_out_loss": 1.0}
    assert parsed == MetricsLine(stage, 3, 12.5, metrics)


def test_a_line_is_seen_during_the_run_and_one_that_is_being_written_waits_for_its_end(
    tmp_path: Path,
) -> None:
    tracker = FakeTracker()
    text = json.dumps({**LINE, "step": 4}) + "\n"
    with mirror(tmp_path, {"fake": tracker}, []):
        write(tmp_path, LINE, text[:20])
        eventually(lambda: tracker.seen)
        assert tracker.seen == [(3, {"loss": 0.5, "num": 2.0})]
        write(tmp_path, text[20:])
    assert [step for step, _ in tracker.seen] == [3, 4]
    assert tracker.ended == [True]


@pytest.mark.parametrize(
    ("last_time", "of_train", "of_sft"),
    [(0.0, [1, 2, 3, 4, 5], [7]), (2.5, [3, 4, 5], []), (9.0, [4, 5], [])],
)
def test_a_resumed_run_sends_the_steps_before_its_checkpoint_once(
    tmp_path: Path, last_time: float, of_train: list[int], of_sft: list[int]
) -> None:
    """The first attempt lost the steps 4 and 5; `last_time`: what an attempt before has sent."""
    write(tmp_path, {**LINE, "stage": "sft", "step": 7, "time": 0.5})
    write(
        tmp_path,
        *(
            {
                **LINE,
                "step": step,
                "time": float(step),
            }
            for step in range(1, 6)
        ),
    )
    tracker = FakeTracker(last_time=last_time)
    with mirror(tmp_path, {"fake": tracker}, []):
        write(
            tmp_path,
            *(
                {
                    **LINE,
                    "step": step,
                    "time": 10.0 + step,
                }
                for step in (4, 5)
            ),
        )
    assert [step for step, metrics in tracker.seen if "loss" in metrics] == of_train
    assert [step for step, metrics in tracker.seen if "sft/loss" in metrics] == of_sft


@pytest.mark.parametrize("point", ["open", "log", "close"])
def test_a_tracker_that_fails_costs_one_warning_and_the_others_go_on(
    tmp_path: Path, point: str
) -> None:
    good = FakeTracker()
    warnings: list[str] = []
    with mirror(tmp_path, {"bad": FakeTracker(fails_at=point), "good": good}, warnings):
        write(tmp_path, *({**LINE, "step": step} for step in range(20)))
    assert len(good.seen) == 20
    (warning,) = warnings
    assert "bad failed" in warning
    assert "the network is down" in warning


def test_a_tracker_that_hangs_at_the_end_does_not_hold_the_run(tmp_path: Path) -> None:
    warnings: list[str] = []
    began = time.monotonic()
    with mirror(tmp_path, {"slow": FakeTracker(slow_s=600)}, warnings, close_timeout_s=0.2):
        write(tmp_path, LINE)
    assert time.monotonic() - began < 300
    assert "slow did not finish" in warnings[0]


def test_a_missing_tracker_is_refused_with_the_way_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xp.execution.tracking.base.find_spec", lambda _: None)
    with pytest.raises(XpError, match=r"pip install mlflow-skinny$") as caught:
        check_trackers(["mlflow"])
    assert caught.value.code == ExitCode.RUNTIME


def test_wandb_needs_a_key_unless_it_is_offline_or_logged_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(XpError, match=r"WANDB_API_KEY.*WANDB_MODE=offline") as caught:
        check_trackers(["wandb"])
    assert caught.value.code == ExitCode.SECRET
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.wandb.ai login user password secret\n")
    netrc.chmod(0o600)
    assert check_trackers(["wandb"]) == {}
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    assert check_trackers(["wandb"]) == {"WANDB_API_KEY": "x" * 40}


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TRACKIO_SPACE_ID", "a/b", "set HF_TOKEN"),
        ("TRACKIO_SERVER_URL", "http://127.0.0.1:1", "export TRACKIO_WRITE_TOKEN="),
        ("TRACKIO_SERVER_URL", "http://a/?write_token=1", "to the address alone"),
    ],
)
def test_trackio_elsewhere_needs_a_key(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "TRACKIO_WRITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setenv(variable, value)
    monkeypatch.setattr("xp.execution.tracking.base.find_spec", lambda _: True)
    with pytest.raises(XpError, match=words) as caught:
        check_trackers(["trackio"])
    assert caught.value.code == ExitCode.SECRET


def test_no_stage_inherits_a_trackers_key() -> None:
    names = secrets_of(["wandb", "tensorboard", "mlflow", "trackio"])
    assert {"WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "TRACKIO_WRITE_TOKEN"} <= set(names)


def test_a_failed_run_is_told_as_such(tmp_path: Path) -> None:
    tracker = FakeTracker()
    with pytest.raises(ZeroDivisionError), mirror(tmp_path, {"fake": tracker}, []):
        raise ZeroDivisionError
    assert tracker.ended == [False]
