"""The command line as a person types it: help, mistyped words, flags, tables, completion."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.child import ended, xp
from xp.__main__ import main
from xp.cli.arguments import COMMANDS
from xp.cli.parser import build
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode, XpError
from xp.planning.plan import Plan

ACTIONS = [name for name in build()[1] if " " in name]


@pytest.mark.parametrize("words", ["plan", "runs list"])
def test_a_working_directory_that_was_deleted_is_one_clear_message(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(words.split()) == ExitCode.RESOURCE
    (said,) = capsys.readouterr().err.splitlines()
    assert "the working directory" in said


@pytest.mark.parametrize("words", [*COMMANDS, *ACTIONS])
def test_every_command_explains_itself_in_80_columns(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        main([*words.split(), "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: python -m xp {words}")
    assert words not in COMMANDS or max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "wanted"),
    [("xp backend=sk", "skyrl"), ("xp resume=ru", "run-1")],
)
def test_the_tabulator_key_completes_options_and_keys(
    line: str, wanted: str, tmp_path: Path
) -> None:
    answer = tmp_path / "answer"
    for file in ("runs/run-1/run.json", "tasks/abc/manifest.json"):
        (tmp_path / "outputs" / file).parent.mkdir(parents=True)
        (tmp_path / "outputs" / file).write_text("{}")
    path = str(Path(__file__).parents[2])
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_LINE": line}
    asked |= {
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "fish",
        "PYTHONPATH": path,
    }
    subprocess.run(
        [sys.executable, "-m", "xp"],
        env={**os.environ, **asked},
        check=False,
        timeout=DEADLINE_S,
        cwd=tmp_path,
    )
    assert wanted in answer.read_text()


def lost_stream(kind: str) -> TextIO:
    """A stream that takes no text: its reader is gone, its disk is full, or its terminal is gone."""
    if kind == "disk":
        return open("/dev/full", "w", encoding="utf-8")
    reader, writer = os.pipe() if kind == "pipe" else pty.openpty()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")


LOST = ("pipe", "disk", "terminal")
BIN = (sys.executable, "-m", "xp")


@pytest.mark.parametrize(
    "words",
    [["plan"], ["runs", "list"]],
    ids=" ".join,
)
def test_a_command_whose_product_is_its_output_says_that_it_is_incomplete(
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    codes = {}
    for kind in LOST:
        with lost_stream(kind) as stream, redirect_stdout(stream):
            try:
                codes[kind] = main(words)
            except SystemExit as end:
                codes[kind] = int(end.code or 0)
        said = capsys.readouterr().err
        assert (said == "") == (kind == "pipe"), said
        assert said.count("\n") <= 1
    assert codes == {"pipe": 0, "disk": ExitCode.RESOURCE, "terminal": ExitCode.RESOURCE}


def test_what_an_encoding_does_not_have_is_written_out() -> None:
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*BIN, "plan"], capture_output=True, text=True, timeout=DEADLINE_S, env=environ
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "whodunit_mini \\xb7 tiny" in done.stdout


def test_a_reader_that_has_enough_ends_a_command_without_a_word() -> None:
    program = " ".join(map(shlex.quote, BIN))
    words = ["bash", "-c", f"set -o pipefail; {program} plan --files | head -1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.skipif(
    not Path(sys.executable).with_name("xp").is_file(), reason="xp is not installed as a program"
)
def test_the_program_finds_modules_of_the_working_directory_as_python_m_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "guess.py").write_text("class Guess:\n    pass\n")
    words = ["plan", "--json", "env=openreward", "env.serve=guess:Guess"]
    program = [str(Path(sys.executable).with_name("xp")), *words]
    done = [ended(program, cwd=tmp_path), xp(*words, cwd=tmp_path)]
    assert [one.stderr for one in done] == ["", ""]
    plans = [json.loads(one.stdout)["spec"] for one in done]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("kind", LOST)
def test_a_sweep_goes_on_without_its_output(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    monkeypatch.setattr("xp.cli.run_plans.run_plan", lambda one, **_: begun.append(one.spec.seed))
    monkeypatch.setattr("xp.checks.doctor.template.check_template_on_tasks", lambda _: None)
    with lost_stream(kind) as stream, redirect_stdout(stream):
        assert main(["prepare", "-m", "env=echo", "seed=1,2,3", f"outputs={tmp_path}"]) == 0
    assert begun == [1, 2, 3]
    assert ("the command went on without it" in capsys.readouterr().err) == (kind != "pipe")


@pytest.mark.parametrize("kind", LOST)
def test_the_code_of_the_work_remains_without_output(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(one: Plan, **_: object) -> None:
        raise XpError(one.run_id, ExitCode.UNHEALTHY)

    monkeypatch.setattr("xp.cli.run_plans.run_plan", fail)
    monkeypatch.setattr("xp.checks.doctor.template.check_template_on_tasks", lambda _: None)
    with (
        lost_stream(kind) as out,
        lost_stream(kind) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        words = ["prepare", "-m", "env=echo", "seed=1,2", f"outputs={tmp_path}"]
        assert main(words) == ExitCode.UNHEALTHY
