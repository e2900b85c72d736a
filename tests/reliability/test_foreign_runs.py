"""Somebody else's run, unpacked below `outputs/runs`, is data: no command deletes, asks, stops or reads by its word."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.foreign import contents, leave_programs, leave_run, make_ours, record
from xp.__main__ import main
from xp.compose import compose
from xp.episode.metrics_file import MetricsFile
from xp.episode.trajectory import TrajectoryWriter
from xp.errors import ExitCode, XpError
from xp.evaluation import records
from xp.launchers import secrets_files
from xp.launchers.base import Context
from xp.launchers.cluster import read_launches
from xp.launchers.files import inside
from xp.report.tokens import TokenReader
from xp.runs import sweep
from xp.runs.record import check_ours, is_ours, read_record, write_record
from xp.runs.run_directory import cancel, hold

pytestmark = pytest.mark.scorecard(42)


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
    words = {
        "list": ["list"],
        "show": ["show", name],
        "logs": ["logs", name],
        "cancel": ["cancel", name],
        "resume": ["resume", name],
        "compare": ["compare", name],
    }
    return {word: main(["runs", *rest, f"outputs={outputs}"]) for word, rest in words.items()}


@pytest.mark.parametrize("run_id", ["../../thesis", "-rf", "other", 7])
def test_a_record_whose_run_id_is_not_its_directorys_name_is_refused_and_nothing_changes(
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
        {"native_id": "7;id"},
        {"native_id": 7},
        {"log": "../../../etc/passwd"},
        {"log": "runs/other/attempt_1/train/log.txt"},
        {"name": "../train"},
        {"started": "yesterday"},
        {"status": "\x1b[2J"},
        {"further": 1},
        {"attempt": {"supervisor": 1}},
        {"attempt": {"number": 2}},
        {"attempt": {"stages": None}},
    ],
    ids=str,
)
def test_a_word_that_xp_would_not_have_written_is_refused_and_no_program_hears_it(
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


def test_a_run_of_somebody_else_that_says_it_runs_is_shown_and_nothing_is_asked_or_stopped(
    outputs: Path, home: Path, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(outputs, "mine", record("mine"))  # with the id of a run whose secrets are here
    before = contents(home), contents(outputs)
    codes = every_command(outputs, "mine")
    wanted = dict.fromkeys(("list", "show", "logs", "compare"), ExitCode.OK)
    assert codes == wanted | dict.fromkeys(("cancel", "resume"), ExitCode.RUN_DIR)
    assert (contents(home), contents(outputs)) == before
    assert not calls.exists()
    shown = capsys.readouterr()
    assert "of elsewhere" in shown.out
    assert "runs trust mine" in shown.err


def test_a_sweep_neither_resumes_nor_counts_a_run_of_somebody_else(outputs: Path, calls: Path) -> None:
    spec = compose([f"outputs={outputs}"])
    for name, status in (("cut", "failed"), ("done", "succeeded"), ("left", "running")):
        leave_run(outputs, name, record(name, status=status), spec)
    todo, left = sweep.open_points([spec], again=False)
    assert [(point.run_id, point.attempt) for point in todo] == [(None, 1)]
    assert left == []
    assert not calls.exists()


def test_a_run_that_is_trusted_is_asked_about_and_can_be_gone_on_with(outputs: Path, calls: Path) -> None:
    leave_run(outputs, "theirs", record("theirs"))
    assert main(["runs", "trust", "theirs", f"outputs={outputs}"]) == ExitCode.OK
    main(["runs", "show", "theirs", f"outputs={outputs}"])
    assert "scontrol --oneliner show job 7" in calls.read_text()


def test_a_copy_of_a_run_and_a_run_of_another_user_are_not_ones_own(
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
    with pytest.raises(XpError, match="it was moved or copied, or another user began it"):
        check_ours(outputs / "copies/runs/run")
    (outputs / "link").symlink_to(outputs / "runs")
    assert is_ours(outputs / "link/run")
    write_record(run, read_record(run))
    assert is_ours(run)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # a user without a name
    assert not is_ours(run)
    assert main(["runs", "trust", "run", f"outputs={outputs}"]) == ExitCode.OK
    assert is_ours(run)


@pytest.mark.parametrize("name", ["..", "../../home", "/etc", "", "a b", "-x"])
@pytest.mark.parametrize("word", ["show", "logs", "cancel", "resume", "trust", "compare"])
def test_a_command_takes_no_path_for_a_run(outputs: Path, word: str, name: str) -> None:
    assert main(["runs", word, name, f"outputs={outputs}"]) == (
        ExitCode.CONFIG if name.startswith("-") else ExitCode.RUN_DIR
    )


def test_links_and_pipes_in_a_run_are_not_followed_and_do_not_block(outputs: Path, home: Path) -> None:
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


def leave_links(run: Path, name: str, target: Path) -> None:
    """Links in the place of every temporary file that a process of this id could be expected to write."""
    for number in range(os.getpid() - 5, os.getpid() + 6):
        (run / f".{name}.{number}.tmp").symlink_to(target)


def test_a_command_writes_through_no_link_that_was_left_for_it(outputs: Path, home: Path) -> None:
    run = leave_run(outputs, "theirs", record("theirs", status="failed"))
    leave_links(run, "report.html", home / "thesis/text.tex")
    (run / "report.html").symlink_to(home / "thesis/text.tex")
    assert main(["report", "theirs", f"outputs={outputs}"]) == ExitCode.OK
    assert (home / "thesis/text.tex").read_text() == "ten years"
    assert (run / "report.html").is_file()
    assert not (run / "report.html").is_symlink()


def test_a_run_that_begins_in_a_directory_that_is_there_writes_through_no_link(outputs: Path, home: Path) -> None:
    run = outputs / "runs/theirs"
    run.mkdir(parents=True)
    (run / ".reserve").symlink_to(home / "thesis/text.tex")
    with hold(run, 1):
        assert (run / ".reserve").stat().st_size > 0
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(home / "thesis/text.tex")
    with pytest.raises((XpError, OSError)), hold(run, 1):
        pass
    assert (home / "thesis/text.tex").read_text() == "ten years"


@pytest.mark.parametrize("name", ["metrics.jsonl", "trajectories/episodes.jsonl", "trajectories", ".lock", "eval.json"])
def test_an_evaluation_that_goes_on_writes_through_no_link(outputs: Path, home: Path, name: str) -> None:
    place = outputs / "evaluations/theirs"
    (place / name).parent.mkdir(parents=True)
    (place / name).symlink_to(home / "thesis" if name == "trajectories" else home / "thesis/text.tex")
    asked = records.Requested("e", {"name": "m"}, None, "k", "r", {})
    with pytest.raises(XpError, match="is a link, which xp does not write through"), records.held(place, asked):
        pass
    assert [path.name for path in (home / "thesis").iterdir()] == ["text.tex"]


def test_recorded_episodes_and_metrics_are_appended_to_no_link(tmp_path: Path, home: Path) -> None:
    link = tmp_path / "link.jsonl"
    link.symlink_to(home / "thesis/text.tex")
    with pytest.raises(OSError, match="symbolic"):
        TrajectoryWriter(link)
    with pytest.raises(OSError, match="symbolic"):
        MetricsFile(link, "train", 1).write(1, {})
    assert (home / "thesis/text.tex").read_text() == "ten years"


def test_a_process_that_does_not_hold_the_run_is_not_stopped(outputs: Path) -> None:
    import subprocess
    import sys

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        text = record("theirs", launcher="local", attempt={"supervisor": bystander.pid, "host": os.uname().nodename})
        run = leave_run(outputs, "theirs", text)
        make_ours(run)
        with hold(run, 2), pytest.raises(XpError, match="does not hold") as caught:
            cancel(run)
        assert caught.value.code == ExitCode.RUN_DIR
        assert bystander.poll() is None
        bystander.communicate(b"\n")


@pytest.mark.parametrize("run_id", ["", ".", "..", "../../thesis", "a/../../thesis"])
def test_forgetting_secrets_removes_a_direct_child_and_nothing_else(home: Path, outputs: Path, run_id: str) -> None:
    before = contents(home)
    secrets_files.forget(Context(run_id, 1, outputs, "runs/x/attempt_1"))
    assert contents(home) == before


def test_forgetting_secrets_follows_no_link_and_leaves_what_is_not_xps(home: Path, outputs: Path) -> None:
    secrets = home / ".xp/secrets"
    (secrets / "linked").symlink_to(home / "thesis")
    (secrets / "mine/notes.txt").write_text("mine")
    (secrets / "mine/2.train.json").symlink_to(home / "thesis/text.tex")
    for run_id in ("linked", "mine"):
        secrets_files.forget(Context(run_id, 1, outputs, "runs/x/attempt_1"))
    assert [path.name for path in (secrets / "mine").iterdir()] == ["notes.txt"]
    assert (home / "thesis/text.tex").read_text() == "ten years"


def test_what_was_submitted_is_not_taken_from_a_file_that_names_another_kind_of_job(tmp_path: Path) -> None:
    (tmp_path / "submitted.json").write_text(
        '[{"launcher": "slurm", "key": "k", "native_id": "--me", "log": "l", "started": "t"}]'
    )
    with pytest.raises(XpError, match="would not name"):
        read_launches(tmp_path)


def test_names_of_a_volume_stay_below_the_outputs(outputs: Path) -> None:
    for name in ("../x", "/etc/x", "a/../../x"):
        with pytest.raises(XpError):
            inside(outputs, name)


def test_a_record_of_a_real_run_is_read_as_it_was_written(outputs: Path) -> None:
    run = leave_run(outputs, "run", record("run"))
    assert read_record(run).attempts[0].stages[0].native_id == "7"
