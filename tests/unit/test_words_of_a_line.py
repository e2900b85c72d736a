"""A run is named by its directory, its name, or the beginning of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.recorded_runs import progressing
from xp.__main__ import main
from xp.cli.parser import parse
from xp.errors import ExitCode


@pytest.mark.parametrize(
    "words",
    [
        *(f"runs {action} {{}}" for action in ("show", "logs", "episode", "compare")),
        "runs trust {} --accept code.x",
        *("report {}", "plan resume={}", "eval run={} eval.python=/nowhere eval.engine=vllm"),
    ],
)
def test_a_beginning_of_a_name_is_enough_everywhere_and_several_are_listed(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = progressing(tmp_path)
    run.rename(run.with_name("run-one"))
    names = ("run-one", "run-o", str(run.with_name("run-one")))
    codes = {main([*words.format(name).split(), f"outputs={tmp_path}"]) for name in names}
    assert len(codes) == 1
    assert "no such run" not in capsys.readouterr().err
    shutil.copytree(run.with_name("run-one"), run.with_name("run-only"))
    code = main([*words.format("run-o").split(), f"outputs={tmp_path}"])
    if words != "runs compare {}":  # which takes several
        assert code == ExitCode.RUN_DIR
        assert "run-o is the beginning of 2 names: run-one, run-only" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["runs show {}", "resume={}"])
def test_a_directory_that_is_no_run_is_refused_with_both_forms(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.format(tmp_path).split()) == ExitCode.RUN_DIR
    assert "the id of a run, nor a directory OUTPUTS/runs/RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ("env check --seconds 60 env=sums --json tasks=4", "words", ["env=sums", "tasks=4"]),
        ("runs compare a --json b", "names", ["a", "b"]),
        ("plan seed=1 --files name=x", "overrides", ["seed=1", "name=x"]),
    ],
)
def test_options_may_stand_between_other_words(line: str, field: str, words: list[str]) -> None:
    assert getattr(parse(line.split()), field) == words
