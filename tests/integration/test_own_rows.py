"""A user's own rows, from a file to a task set by one command."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.__main__ import main
from xp.composition import compose
from xp.planning.stages import prepare_config
from xp.tasks.request import request_key

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]


def test_a_file_of_twenty_rows_is_prepared_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sums.csv"
    file.write_text(
        "\ufeffquestion,answer\r\n"
        + "".join(f'"What is\n{n} + {n}?",{2 * n}\r\n' for n in range(20))
    )
    words = ("env=graded", "env.rows=./sums.csv", "env.grader=number")
    assert main(["prepare", *words, "training.num_steps=1", "training.prompts_per_step=4"]) == 0
    shown = capfd.readouterr().out
    assert (
        "rows of sums: 20 train; prompt from the column question, answer from the column answer"
        in shown
    )
    assert (
        "4 of 20 tasks of split train, chosen by the hash of their content (warning: means of fewer"
        in shown
    )
    (run,) = (tmp_path / "outputs/runs").iterdir()
    (copy,) = (run / "attempt_1/code/data-files").glob("*/sums.csv")
    assert copy.read_bytes() == file.read_bytes()

    before = request_key(prepare_config(compose(words)))
    file.write_text(file.read_text().replace("What is", "How much is"))
    assert request_key(prepare_config(compose(words))) != before
