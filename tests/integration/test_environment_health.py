"""Faults planted in served environments are named, with file and line, in the health of the run that met them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ors_server import rules
from xp.envs import local_server, openreward
from xp.envs.config import EpisodeConfig
from xp.episode.mixture import EnvironmentMixture
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.execution.health import EpisodeCount
from xp.spec.dialect import Dialect
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

pytestmark = pytest.mark.integration
MODULE = "tests.envs_under_test.faulty"
OPENENV = "tests.envs_under_test.faulty_openenv"
SECRET = "a-shovel-of-gold-0042"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_server, "PING_S", 0.2)
    monkeypatch.setattr(openreward, "CLOSE_S", 0.5)


def place_of(fault: str, module: str = MODULE) -> tuple[Path, int]:
    """File and line of the planted fault."""
    file = Path(module.replace(".", "/") + ".py").resolve()
    lines = file.read_text().splitlines()
    return file, next(
        number for number, line in enumerate(lines, start=1) if line.endswith(f"# fault: {fault}")
    )


def health(
    run: Path, name: str, module: str = MODULE, *, limit_s: float = 20.0, **more: Any
) -> str:
    """Plays one episode of a class that fails, as a stage does, and returns the health of its run."""
    stage = run / "attempt_1" / "train"
    stage.mkdir(parents=True)
    retries: Mapping[str, Any] = {
        "retries_per_episode": 0,
        "call_timeout_s": limit_s,
        "episode_timeout_s": 60.0,
    }
    member = rules(serve=f"{module}:{name}", dialect=Dialect.HERMES, **retries, **more)
    (stage / "episode.json").write_text(EpisodeConfig({member.name: member}).to_json())
    environ = {**os.environ, "XP_DIGGER_TOKEN": SECRET, "XP_PASS_ENV": "XP_DIGGER_TOKEN"}
    with (
        EnvironmentMixture.from_file(stage / "episode.json", environ) as mix,
        TrajectoryWriter(stage / "trajectories" / "train.jsonl") as writer,
    ):
        row = TaskRow(
            "",
            member.name,
            Purpose.TRAIN,
            "train",
            0,
            "",
            (),
            "[]",
            1.0,
        )
        episode = mix.episode(row)
        tool = "step" if module == OPENENV else "dig"
        episode.step(f'<tool_call>{{"name": "{tool}", "arguments": {{}}}}</tool_call>')
        episode.settle()
        writer.write(
            trajectory(
                episode,
                run="r",
                phase="train",
                step=0,
                sample=0,
                tools="[]",
            )
        )
    lines = EpisodeCount.of(run).health.lines(run)
    print("\n".join(lines))
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        (
            "Raising",
            "raise",
            ("1 of 1 episode void", "ToolCrashed", "in map_of", "KeyError: '[REDACTED]'"),
        ),
        ("Starting", "setup", ("opening: ToolCrashed", "RuntimeError: no shovel")),
        ("Dying", "die", ("dig is defined in", "it has ended")),
        ("Slow", "slow", ("0 of 1 episode void", "slowest calls: fake dig")),
        ("Raising", "openenv", ("step: ToolCrashed", "RuntimeError: thirteen")),
    ],
)
def test_a_fault_is_named_with_its_file_and_line_and_no_secret(
    tmp_path: Path, name: str, fault: str, words: tuple[str, ...]
) -> None:
    module = OPENENV if fault == "openenv" else MODULE
    more = (
        {"provider": "openenv", "rows": "tests.envs_under_test.rows:digs"}
        if module == OPENENV
        else {}
    )
    text = health(tmp_path, name, module, **more)
    file, line = place_of(fault, module)
    assert f'{file}", line {line}' in text or f"{file}:{line}" in text
    for word in words:
        assert word in text
    assert SECRET not in (tmp_path / "attempt_1/train/environment.jsonl").read_text()


@pytest.mark.parametrize(("name", "fault"), [("Hanging", "hang"), ("Blocking", "block")])
def test_a_call_without_an_answer_is_named_with_the_line_that_waits(
    tmp_path: Path, name: str, fault: str
) -> None:
    text = health(tmp_path, name, limit_s=1.0)
    assert "DeadlineExceeded" in text or "SessionLost" in text
    file, line = place_of(fault)
    assert f'{file}", line {line}' in text
    assert ("it has not answered for 1 s" in text) == (name == "Blocking")
