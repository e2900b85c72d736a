"""Real short trainings on the CPU with a fault planted in each: the diagnosis names it, by the run's own record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xp.errors import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

SHORT = (
    *("env.train.num_tasks=16", "env.held_out.num_tasks=16", "training.prompts_per_step=4", "training.group_size=4"),
    *("training.micro_batch_size=8", "training.num_steps=8", "training.warmup_updates=0"),
)
FAULTS = {
    "equal_groups": ("env.reward_fn=always:the_same",),
    "warm_up": ("training.warmup_updates=1000",),
    "truncation": ("training.max_response_tokens=24", "training.max_tokens_per_turn=24"),
    "malformed": ("env.dialect=pythonic", "env.on_malformed_call=stop"),
}


def run(directory: Path, *words: str) -> tuple[int, Path]:
    """A run to its end; returns its exit code and its directory."""
    (directory / "always.py").write_text("def the_same(outcome):\n    return 0.25\n")
    command = [sys.executable, "-m", "xp", *SHORT, *words]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1800, check=False)
    print(done.stdout[-2000:], done.stderr[-2000:])
    (found,) = (directory / "outputs/runs").iterdir()
    return done.returncode, found


def diagnosed(directory: Path, name: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "xp", "runs", "diagnose", name, "--json"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_by_its_rule(fault: str, tmp_path: Path) -> None:
    code, place = run(tmp_path, *FAULTS[fault])
    assert code == 0
    verdict, found = diagnosed(tmp_path, place.name)
    assert fault in [one["rule"] for one in found["symptoms"]]
    assert verdict != ExitCode.OK
    assert f"xp: symptom {fault}" in (place / "attempt_1/train/log.txt").read_text()


def test_a_symptom_ends_the_run_where_it_is_to(tmp_path: Path) -> None:
    code, place = run(tmp_path, *FAULTS["equal_groups"], "training.on_symptom=stop")
    assert code == ExitCode.SYMPTOM
    verdict, found = diagnosed(tmp_path, place.name)
    assert (verdict, found["verdict"]) == (ExitCode.BROKEN, "broken")


def test_a_good_run_has_no_symptom(tmp_path: Path) -> None:
    code, place = run(tmp_path, "training.prompts_per_step=8", "training.group_size=8", "training.num_steps=12")
    assert code == 0
    _, found = diagnosed(tmp_path, place.name)
    assert [one for one in found["symptoms"] if one["severity"] != "note"] == []
