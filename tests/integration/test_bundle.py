"""Bundles: a run of one's own environment and grader in another directory, as data until it is run."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.support.child import xp
from tests.support.own_game import GAME, SECRET
from tests.support.own_game import prepared as prepared
from tests.support.own_game import run as run
from xp.__main__ import main
from xp.errors import ExitCode, XpError
from xp.lib.digest import bytes_digest
from xp.results.replay.recorded import RecordedRun


def bundle_of(run: Path) -> Path:
    assert main(["runs", "bundle", run.name, "--to", "own.zip"]) == 0
    return Path("own.zip").absolute()


def test_another_directory_plans_and_prepares_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = bundle_of(run)
    there = tmp_path / "there"
    there.mkdir()
    shutil.move(file, there / "own.zip")
    shutil.rmtree(tmp_path / "here")
    marker = there / "imported"
    monkeypatch.chdir(there)
    monkeypatch.setenv("IMPORTED", str(marker))
    capsys.readouterr()
    assert main(["plan", "own.zip", "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    with zipfile.ZipFile(there / "own.zip") as archive:
        (tasks,) = [name for name in archive.namelist() if name.endswith("tasks.parquet")]
        digest = bytes_digest(archive.read(tasks))
    assert stages[0]["job"]["outputs"][1] == tasks
    assert not marker.exists(), "a bundle is data until it is run"
    monkeypatch.delenv("IMPORTED")
    recorded = RecordedRun.open(Path("own.zip"))
    assert recorded.directory is not None
    code = recorded.directory.absolute() / "attempt_1/code"
    done = xp("prepare", "own.zip", cwd=there, GAME_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    assert (
        "own.zip may come from somebody else; a run of it\n  would import modules: game"
        in done.stderr
    )
    (new,) = (there / "outputs/runs").iterdir()
    assert recorded.differences(new) == []
    made = there / "outputs" / tasks
    assert bytes_digest(made.read_bytes()) == digest
    code.joinpath("game.py").write_text(GAME.replace("no-key", "a-key"))
    again = xp("prepare", "own.zip", "seed=5", cwd=there, GAME_KEY=SECRET)
    assert again.returncode == 0, again.stderr
    (other,) = {*(there / "outputs/runs").iterdir()} - {new}
    code.joinpath("game.py").write_text(GAME)
    assert recorded.differences(other) == [
        "spec: seed: 1 -> 5",
        "seeds.seed: 1 -> 5",
        "code.game: game.py",
    ]


def test_no_value_of_a_secret_is_in_a_bundle(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAME_KEY", SECRET)
    with zipfile.ZipFile(bundle_of(run)) as archive:
        assert json.loads(archive.read("bundle.json"))["secrets"] == ["GAME_KEY"]
        assert not [name for name in archive.namelist() if SECRET.encode() in archive.read(name)]
    copy = run / "attempt_1/code/game.py"
    copy.write_text(GAME.replace("no-key", SECRET))
    assert main(["runs", "bundle", run.name, "--to", "second.zip"]) == ExitCode.SECRET
    assert "attempt_1/code/game.py has the value of a secret" in capsys.readouterr().err
    assert not Path("second.zip").exists()


def test_the_same_run_gives_the_same_bundle_and_nothing_is_overwritten(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bundle_of(run)
    assert main(["runs", "bundle", run.name, "--to", "again.zip"]) == 0
    assert first.read_bytes() == Path("again.zip").read_bytes()
    assert main(["runs", "bundle", run.name, "--to", "again.zip"]) == ExitCode.RUN_DIR
    assert main(["runs", "bundle", run.name, "--to", "again.tar"]) == ExitCode.CONFIG
    assert not Path("again.tar").exists()
    assert main(["runs", "bundle", run.name, "--to", "less.zip", "--no-tasks"]) == 0
    assert "left out: task set: by --no-tasks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../outside", 0), ("link", 0o120777)],
)
def test_an_entry_that_leads_elsewhere_is_refused(run: Path, name: str, kind: int) -> None:
    file = bundle_of(run)
    with zipfile.ZipFile(file, "a") as archive:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = kind << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(XpError, match="is not a bundle: it has the entry") as refused:
        RecordedRun.open(file)
    assert refused.value.code is ExitCode.RUN_DIR
    assert not (run.parents[2].parent / "outside").exists()
    assert [one.name for one in (run.parents[1] / "bundles").glob(".*")] == []


def test_a_file_that_is_no_bundle_is_said_to_be_none(tmp_path: Path) -> None:
    content = b"PK\x03\x04 and nothing more"
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(XpError, match="is not a bundle"):
        RecordedRun.open(tmp_path / "a.zip", (f"outputs={tmp_path}",))
