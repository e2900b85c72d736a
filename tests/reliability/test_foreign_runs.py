"""Somebody else's run, unpacked below `outputs/runs`, is data: no command deletes, asks, stops or reads by its word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.foreign import contents, leave_programs, leave_run, make_ours, record
from xp.__main__ import main
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution import sweep
from xp.execution.record import begin_attempt, is_ours, read_record, write_record
from xp.results.report.tokens import TokenReader


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home with secrets of a run and with something dear."""
    place = tmp_path / "home"
    (place / ".xp/secrets/mine").mkdir(parents=True)
    (place / ".xp/secrets/mine/1.train.json").write_text("{}")
    (place / "thesis").mkdir()
    (place / "thesis/text.tex").write_text("ten years")
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calls of a cluster's programs, in order."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return leave_programs(tmp_path / "bin")


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def every_command(outputs: Path, name: str) -> dict[str, int]:
    """The exit codes of all that looks at runs."""
    names = {
        "list": [],
        "show": [name],
        "logs": [name],
        "cancel": [name],
        "compare": [name],
    }
    codes = {
        word: main(["runs", word, *rest, f"outputs={outputs}"]) for word, rest in names.items()
    }
    return codes | {"resume": main(["plan", f"resume={name}", f"outputs={outputs}"])}


@pytest.mark.parametrize("run_id", ["../../thesis", "other"])
def test_a_record_with_another_run_id_is_refused(
    outputs: Path, home: Path, calls: Path, run_id: Any
) -> None:
    leave_run(outputs, "theirs", record(run_id, native_id=None))
    make_ours(outputs / "runs/theirs")
    before = contents(home), contents(outputs)
    codes = every_command(outputs, "theirs")
    assert codes.pop("list") == ExitCode.OK
    assert set(codes.values()) == {ExitCode.RUN_DIR}
    assert sweep.ledger(outputs) == {}
    assert (contents(home), contents(outputs)) == before
    assert not calls.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"native_id": "--user=root"},
        {"log": "../../../etc/passwd"},
        {"name": "../train"},
        {"status": "\x1b[2J"},
        {"further": 1},
        {"attempt": {"supervisor": 1}},
        {"attempt": {"stages": None}},
    ],
    ids=str,
)
def test_an_unexpected_word_is_refused_and_reaches_no_program(
    outputs: Path, calls: Path, changes: dict[str, Any]
) -> None:
    leave_run(outputs, "theirs", record("theirs", **changes))
    make_ours(outputs / "runs/theirs")
    before = contents(outputs)
    codes = every_command(outputs, "theirs")
    assert codes.pop("list") == ExitCode.OK
    assert set(codes.values()) == {ExitCode.RUN_DIR}
    assert contents(outputs) == before
    assert not calls.exists()


def test_a_strangers_running_run_is_shown_and_not_stopped(
    outputs: Path, home: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(outputs, "mine", record("mine"))  # with the id of a run whose secrets are here
    before = contents(home), contents(outputs)
    codes = every_command(outputs, "mine")
    wanted = dict.fromkeys(("list", "show", "logs", "compare"), ExitCode.OK)
    assert codes == wanted | {"cancel": ExitCode.RUN_DIR, "resume": ExitCode.OK}
    assert (contents(home), contents(outputs)) == before
    assert not calls.exists()
    shown = capsys.readouterr()
    assert "of elsewhere" in shown.out


def test_a_sweep_neither_resumes_nor_counts_a_run_of_somebody_else(
    outputs: Path, calls: Path
) -> None:
    spec = compose([f"outputs={outputs}"])
    for name, status in (("cut", "failed"), ("done", "succeeded"), ("left", "running")):
        leave_run(outputs, name, record(name, status=status), spec)
    todo, left = sweep.open_points([spec], again=False)
    assert [(point.run_id, point.attempt) for point in todo] == [(None, 1)]
    assert left == []
    assert not calls.exists()


def test_copies_of_runs_and_other_users_runs_are_foreign(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = leave_run(outputs, "run", record("run"))
    assert not is_ours(run)
    with pytest.raises(XpError, match="was begun elsewhere, so its tokenizer is not loaded"):
        TokenReader(run)
    make_ours(run)
    assert is_ours(run)
    shutil.copytree(run, outputs / "copies/runs/run")
    assert not is_ours(outputs / "copies/runs/run")
    (outputs / "link").symlink_to(outputs / "runs")
    assert is_ours(outputs / "link/run")
    write_record(run, read_record(run))
    assert is_ours(run)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # a user without a name
    assert not is_ours(run)
    before = read_record(run)
    write_record(run, begin_attempt(before, ["train"], before.attempts[-1].provenance))
    assert is_ours(run), "a resume takes the run over"


@pytest.mark.parametrize("name", ["../../home", "/etc", "-x"])
@pytest.mark.parametrize("word", ["logs", "cancel"])
def test_a_command_takes_no_path_for_a_run(outputs: Path, word: str, name: str) -> None:
    assert main(["runs", word, name, f"outputs={outputs}"]) == (
        ExitCode.CONFIG if name.startswith("-") else ExitCode.RUN_DIR
    )


def test_links_and_pipes_in_a_run_are_not_followed(outputs: Path, home: Path) -> None:
    run = leave_run(outputs, "theirs", record("theirs"))
    log = run / "attempt_1/train/log.txt"
    log.unlink()
    log.symlink_to("/etc/passwd")
    (run / ".lock").symlink_to(home / "thesis/text.tex")
    before = contents(home), contents(outputs)
    codes = every_command(outputs, "theirs")
    assert codes["logs"] == ExitCode.RUN_DIR
    assert (contents(home), contents(outputs)) == before
    log.unlink()
    os.mkfifo(log)
    assert main(["runs", "logs", "theirs", f"outputs={outputs}"]) == ExitCode.RUN_DIR
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    assert main(["runs", "show", "theirs", f"outputs={outputs}"]) == ExitCode.RUN_DIR
