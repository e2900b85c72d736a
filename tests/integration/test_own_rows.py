"""A user's own rows, from a file to a task set by one command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]


def xp(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "xp", *words]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=900)


def test_a_file_of_twenty_rows_is_prepared_by_one_command(tmp_path: Path) -> None:
    file = tmp_path / "sums.csv"
    file.write_text("\ufeffquestion,answer\r\n" + "".join(f'"What is\n{n} + {n}?",{2 * n}\r\n' for n in range(20)))
    words = ("env=graded", "env.rows=./sums.csv", "env.grader=number")
    done = xp("prepare", *words, "training.num_steps=1", "training.prompts_per_step=4", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows of sums: 20 train; prompt from the column question, answer from the column answer" in done.stdout
    assert "4 of 20 tasks of split train, chosen by the hash of their content (warning: means of fewer" in done.stdout
    (run,) = (tmp_path / "outputs/runs").iterdir()
    (copy,) = (run / "attempt_1/code/data-files").glob("*/sums.csv")
    assert copy.read_bytes() == file.read_bytes()

    file.write_text(file.read_text().replace("What is", "How much is"))
    again = xp("prepare", *words, cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert len(list((tmp_path / "outputs/tasks").glob("*/manifest.json"))) == 2
