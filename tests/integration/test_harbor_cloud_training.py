"""Trainings whose programs and agents run in a stub of Daytona's API, which really executes their commands here."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.daytona_cloud import KEY, daytona_cloud
from tests.support.clouds import ADDRESS, VARIABLE, cloud_task, free_port, needs_harbor
from tests.support.harness_programs import PROGRAMS
from xp.__main__ import main

WORDS = (
    "env=harness",
    "env.sandbox=daytona",
    "env.secrets.DAYTONA_API_KEY=null",
    "env.held_out=null",
    "evaluation.num_tasks=null",
    "env.max_turns=2",
    "env.limits.max_sessions=2",
    "env.options.cloud.starts_per_second=100",
    "env.options.cloud.price=1",
    "env.options.cloud.budget=5",
    "model=tiny",
    "training.num_steps=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=4",
    "training.max_response_tokens=200",
    "training.max_tokens_per_turn=12",
    "training.entropy_coef=0.01",
)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    needs_harbor,
]


@pytest.mark.parametrize("player", ["a program", "terminus-2"])
def test_a_training_in_a_cloud_makes_two_steps_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, player: str
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for number in range(2):
        cloud_task(tmp_path / f"tasks/train/task_{number}")
    listen = f"127.0.0.1:{free_port()}"
    words = [*WORDS, f"env.target={tmp_path / 'tasks'}", f"env.python={os.environ[VARIABLE]}"]
    if player == "a program":
        words += [
            f"env.options.endpoint={ADDRESS}",
            f"env.options.listen={listen}",
            f"env.options.program={PROGRAMS}",
            "env.options.command=python {program}/shell_agent.py {prompt_file}",
        ]
    else:
        # Its own prompt has some 3,000 characters.
        words += [
            "env.options.agent=terminus-2",
            "model.max_context_tokens=4096",
            "training.max_prompt_tokens=3600",
        ]
    with daytona_cloud(tmp_path / "cloud", f"http://{listen}") as cloud:
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"{cloud.url}/api")
        assert main([*words, f"outputs={tmp_path / 'outputs'}"]) == 0
        assert len(cloud.created) >= 8
        assert not cloud.sandboxes
        assert len(cloud.built) == 1
        assert cloud.most_open == 2
    (run,) = (tmp_path / "outputs/runs").iterdir()
    lines = _train_lines(run)
    assert [(line["episodes/num"], line.get("episodes/void", 0.0)) for line in lines] == [
        (4.0, 0.0)
    ] * 2
    assert all(line["grader/program_requests"] >= 1.0 for line in lines)
    assert all(line["training/tokens"] > 0 for line in lines)
    assert not [
        file for file in run.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()
    ]


def _train_lines(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == "train"]
