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
from filelock import FileLock

from tests.support.foreign import leave_run, make_ours, record
from xp.__main__ import main
from xp.checks.contracts.jobs import DEADLINE_S
from xp.cli.arguments import COMMANDS, INSTEAD
from xp.cli.parser import build, parse
from xp.cli.run_plans import run_plans
from xp.cli.table import fitted, wrapped
from xp.composition import GROUPS, compose, options
from xp.errors import ExitCode, XpError
from xp.execution.named import outputs_of
from xp.execution.record import LOCK, RunRecord, RunStatus
from xp.planning.plan import Plan, build_again

RUNS = {"run": 0, "status": 1, "reward": 2, "note": 3}
ROWS = [
    {
        "run": "whodunit_mini-20261122-054017-a1b2",
        "status": "succeeded",
        "reward": 0.5,
        "note": "n" * 80,
    },
    {"run": "echo-20261122-054017-c3d4", "status": "running", "reward": None, "note": "a\tb"},
]
ACTIONS = [name for name in build()[1] if " " in name]


@pytest.mark.parametrize(
    "words", ["plan", "env.train.num_tasks=3", "runs list", "-m seed=1,2", "tasks verify"]
)
def test_a_working_directory_that_was_deleted_is_one_clear_message(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(words.split()) == ExitCode.RESOURCE
    (said,) = capsys.readouterr().err.splitlines()
    assert "the working directory" in said


def test_commands_and_actions_are_few() -> None:
    assert len(COMMANDS) <= 18
    assert len(ACTIONS) + 1 <= 22, "with `eval list`"
    assert not {*INSTEAD} & {*COMMANDS, *ACTIONS}


@pytest.mark.parametrize("words", INSTEAD)
def test_a_word_that_is_no_command_names_the_command_for_it(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "x"]) == ExitCode.CONFIG
    assert f"use `python -m xp {INSTEAD[words]}`" in capsys.readouterr().err


@pytest.mark.parametrize("words", [*COMMANDS, *ACTIONS])
def test_every_command_explains_itself(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m xp {words}")


def test_a_flag_may_stand_before_or_after_the_overrides() -> None:
    assert parse(["-m", "seed=1,2"]).multirun
    assert parse(["seed=2"]).command == "run"
    assert parse(["runs", "outputs=there"]).outputs == Path("there")
    assert parse(["runs", "--json"]).action == "list"
    assert parse(["runs", "--json", "show", "x"]).json


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_fits_the_terminal_and_keeps_names_whole(width: int) -> None:
    lines = fitted(RUNS, ROWS, width).splitlines()
    assert all(row["run"] in text for row, text in zip(ROWS, lines[1:], strict=False))
    assert max(map(len, lines[:3])) <= width
    assert lines[-1].startswith("not shown: ") == (width < 110)


def test_a_long_line_is_broken_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = f"  means  {'a word ' * 20}end"
    assert wrapped(line) == line
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    broken = wrapped(line).splitlines()
    assert max(map(len, broken)) <= 40
    assert all(text.startswith(" " * 9) for text in broken[1:])
    assert " ".join(wrapped(line).split()) == " ".join(line.split())


@pytest.mark.parametrize("words", COMMANDS)
def test_help_fits_80_columns(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([words, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_groups_are_listed_by_the_help_of_xp_and_by_options_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in ("--help", "plan --help", "prepare --help"):
        with pytest.raises(SystemExit):
            main(words.split())
        out = capsys.readouterr().out
        assert ("llama3.2-3b-instruct" in out) == (words == "--help")
        assert "python -m xp options" in out
    assert main(["options"]) == 0
    assert "llama3.2-3b-instruct" in capsys.readouterr().out
    assert main(["options", "modle"]) == ExitCode.CONFIG
    assert "did you mean model?" in capsys.readouterr().err


@pytest.mark.parametrize("group", [group for group in GROUPS if group != "env"])
def test_every_option_says_what_it_is(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", group, "--json"]) == 0
    found = {one["name"]: one["about"] for one in json.loads(capsys.readouterr().out)}
    assert found.keys() >= options(group).keys()
    assert [name for name, about in found.items() if len(about) < 5] == []


def test_what_is_explained_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "metrics", "--json"]) == 0
    assert "reward/avg_raw_reward" in {row["metric"] for row in json.loads(capsys.readouterr().out)}
    assert main(["explain", "training.group_size", "clip_fraction", "--json"]) == 0
    metric, key = json.loads(capsys.readouterr().out)
    assert metric["metric"] == "training/clip_fraction"
    assert key["key"] == "training.group_size"
    assert key["value"] == 8


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("xp backend=sk", "skyrl"),
        ("xp algorithm.estimator=r", "rloo"),
        ("xp env.max_t", "env.max_turns"),
        ("xp resume=ru", "run-1"),
        ("xp tasks show a", "abc"),
    ],
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
    [["plan"], ["plan", "--help"], ["--version"], ["runs", "list"], ["tasks", "prune", "--json"]],
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
            except SystemExit as ended:
                codes[kind] = int(ended.code or 0)
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


@pytest.mark.parametrize("kind", LOST)
def test_a_log_that_nobody_reads_is_not_followed(kind: str, tmp_path: Path) -> None:
    run = leave_run(tmp_path, "run", record("run", status="running"))
    make_ours(run)
    (run / "attempt_1/train/log.txt").write_text("a line\n")
    with FileLock(run / LOCK), lost_stream(kind) as stream, redirect_stdout(stream):
        assert main(["runs", "logs", "run", "--follow", f"outputs={tmp_path}"]) == (
            0 if kind == "pipe" else ExitCode.RESOURCE
        )


def test_an_outputs_root_in_quotes_is_the_same_for_every_command() -> None:
    for word in ('outputs="/a b/c"', "outputs='/a b/c'", "outputs=/a b/c"):
        assert outputs_of([word]) == Path("/a b/c")


@pytest.mark.skipif(
    not Path(sys.executable).with_name("xp").is_file(), reason="xp is not installed as a program"
)
def test_the_program_finds_modules_of_the_working_directory_as_python_m_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "guess.py").write_text("class Guess:\n    pass\n")
    words = ["plan", "--json", "env=openreward", "env.serve=guess:Guess"]
    plans = []
    for program in ([str(Path(sys.executable).with_name("xp"))], [sys.executable, "-m", "xp"]):
        ended = subprocess.run(
            [*program, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        plans.append(json.loads(ended.stdout)["spec"])
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


def test_a_preparation_that_is_resumed_has_no_summary_of_a_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunRecord("R", RunStatus.SUCCEEDED, ())
    monkeypatch.setattr("xp.execution.supervise.dispatch", lambda *_, **__: record)
    plan = build_again(compose(["env=echo", f"outputs={tmp_path}"]), "R", 1, ["prepare"])
    run_plans([plan])
    assert "tuned" not in capsys.readouterr().out
