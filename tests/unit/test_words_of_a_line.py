"""Words of a command line in any order, a run by its directory, the points of a sweep, and plain lines in a pipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.recorded_runs import progressing
from xp.__main__ import main
from xp.cli.parser import parse
from xp.errors import ExitCode


@pytest.mark.parametrize(
    ("line", "field", "wanted"),
    [
        ("env check env=multiply --seconds 60 tasks=4", "words", ["env=multiply", "tasks=4"]),
        (
            "env check --seconds 60 env=multiply --json tasks=4",
            "words",
            ["env=multiply", "tasks=4"],
        ),
        ("runs compare a --json b", "names", ["a", "b"]),
        ("tasks verify a --json b", "keys", ["a", "b"]),
        ("report a --episodes none b", "runs", ["a", "b"]),
        ("plan seed=1 --files name=x", "overrides", ["seed=1", "name=x"]),
    ],
)
def test_options_may_stand_between_other_words(line: str, field: str, wanted: list[str]) -> None:
    assert getattr(parse(line.split()), field) == wanted


def test_a_run_is_named_by_its_id_or_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = progressing(tmp_path)
    shown = []
    for name in (run.name, str(run), f"{run}/"):
        assert main(["runs", "show", name, f"outputs={tmp_path}"]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0]
    assert shown == [shown[0]] * 3


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
    codes = [
        main([*words.format(name).split(), f"outputs={tmp_path}"]) for name in ("run-one", "run-o")
    ]
    assert codes[0] == codes[1]
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


@pytest.mark.parametrize("command", ["prepare", "run"])
def test_each_point_of_a_sweep_is_named_by_what_was_typed(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: object, **__: object) -> None:
        """The runs themselves are no part of this test."""

    monkeypatch.setattr("xp.cli.run_plans.run_plan", stop)
    monkeypatch.setattr("xp.checks.doctor.template.check_template_on_tasks", stop)
    monkeypatch.setenv("COLUMNS", "200")
    words = ["env=multiply,gsm8k_mini", "preparation.concurrency=2,4", f"outputs={tmp_path}"]
    assert main([command, "-m", *words]) == 0
    said = capsys.readouterr().out
    for number, name in enumerate(("multiply", "gsm8k_mini"), start=1):
        for other, concurrency in enumerate((2, 4)):
            assert f"{2 * number - 1 + other}/4" in said
            assert f"env={name} preparation.concurrency={concurrency} " in said
