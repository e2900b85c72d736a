"""A module of the user's that no import statement names counts as soon as a process has loaded it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xp.errors import XpError
from xp.execution.lock import Lock, check_resumed, complete_lock, inputs_of, read_lock
from xp.execution.preflight import _loaded_before
from xp.lib.code_files import location_digest
from xp.lib.loaded_code import FILE, VARIABLE, changed, loaded
from xp.results.evaluation.records import REQUEST, EvaluationIdentity, directory_of
from xp.worker.facts import FILE as FACTS

MINE = """
import importlib, json, sys
sys.path.insert(0, {library!r})
def go():
    importlib.import_module("hid" + "den")
"""


def record(code: Path, file: Path) -> None:
    """Loads a module that loads another one, in a process whose record is the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    environ = {
        **os.environ,
        "PYTHONPATH": f"{code}:{Path(__file__).parents[2]}",
        VARIABLE: str(file),
    }
    program = "from xp.lib.load import load_object; load_object('mine:go')()"
    subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        check=True,
        timeout=60,
    )


@pytest.fixture
def code(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    (place / "library").mkdir(parents=True)
    (place / "mine.py").write_text(MINE.format(library=str(place / "library")))
    (place / "library/hidden.py").write_text("points = 1\n")
    return place


def test_a_resume_is_refused_when_such_a_module_changed(code: Path, tmp_path: Path) -> None:
    run = tmp_path / "outputs/runs/r"
    hidden = code / "library/hidden.py"
    stage = run / "attempt_1/train"
    record(code, stage / FILE)
    assert {place.name for place in loaded(stage / FILE)} == {"mine.py", "hidden.py"}
    (stage / FACTS).write_text("{}")
    (run / "attempt_1/plan.json").write_text(json.dumps({"spec": {}}))
    before = inputs_of({}, [code / "mine.py"])
    (run / "lock.json").write_text(
        Lock(1, {"code.mine": location_digest(code / "mine.py")}).to_json()
    )
    complete_lock(run)
    assert read_lock(run).facts["code.hidden"] == location_digest(hidden)
    assert hidden in _loaded_before(run)
    now = inputs_of({}, [*before.locations.values(), *_loaded_before(run)])
    assert not [line for line in check_resumed(run, now) if "hidden" in line]
    hidden.write_text("points = 100\n")
    assert changed(stage / FILE) == ["hidden"]
    with pytest.raises(XpError, match=r"code\.hidden"):
        check_resumed(run, now)


def test_an_evaluation_is_played_again_when_such_a_module_changed(
    code: Path, tmp_path: Path
) -> None:
    requested = EvaluationIdentity("e", {"name": "m"}, None, "t", "r", {})
    place = directory_of(tmp_path, requested, again=False)
    record(code, place / FILE)
    (place / REQUEST).write_text("{}")
    assert directory_of(tmp_path, requested, again=False) == place
    (code / "library/hidden.py").write_text("points = 100\n")
    assert directory_of(tmp_path, requested, again=False).name == f"{place.name}-2"
    (code / "library/hidden.py").unlink()  # of another machine
    assert directory_of(tmp_path, requested, again=False) == place
