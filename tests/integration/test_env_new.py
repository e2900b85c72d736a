"""`python -m xp env new` and `options env`, from the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.environments.python import VARIABLE, python
from tests.support.child import ended, xp
from xp.__main__ import main
from xp.cli.environments import WORDS, new_environment
from xp.cli.options import first_sentence
from xp.composition import options
from xp.errors import XpError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind == "graded" else pytest.param(kind, marks=pytest.mark.slow)
        for kind in sorted(WORDS)
    ],
)
def test_a_new_environment_passes_its_test_and_the_check_at_once(kind: str, tmp_path: Path) -> None:
    words = new_environment("counting_up", kind, tmp_path)
    if kind == "verifiers":
        if VARIABLE not in os.environ:
            pytest.skip(f"needs {VARIABLE}=a Python with verifiers: make test-environments")
        words += [f"env.python={python()}", "env.limits.create_timeout_s=250"]
    # In pytest's common directory it would remove what earlier sessions have left there.
    quiet = ("-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "inner"))
    command = [sys.executable, "-m", "pytest", *quiet, "test_counting_up.py"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    tested = ended(command, cwd=tmp_path, env=environ)
    assert tested.returncode == (5 if kind == "verifiers" else 0), (
        tested.stdout
    )  # 5: skipped, and no test is left
    checked = xp("env", "check", *words, "--seconds", "250", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "fault" not in checked.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_counting_up.py").write_text("mine")
    with pytest.raises(XpError, match="already there"):
        new_environment("counting_up", "graded", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_counting_up.py"]
    assert (tmp_path / "test_counting_up.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["my-env", "../up", "class"])
def test_a_name_that_no_module_of_ones_own_can_have_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XpError, match="env new"):
        new_environment(name, "graded", tmp_path)
    assert not list(tmp_path.iterdir())


LISTED = ("multiply", "gsm8k", "reasoning_gym", "openenv_atari", "whodunit_mini_multiply")


def test_the_list_says_what_each_environment_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = options("env")
    assert [name for name, file in files.items() if len(first_sentence(file)) < 5] == []
    few = {name: files[name] for name in LISTED}
    monkeypatch.setattr("xp.cli.options.options", lambda *_: few)
    assert main(["options", "env", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found.keys() == few.keys()
    assert found["multiply"]["needs"] == []
    assert found["gsm8k"]["needs"] == ["OPENREWARD_API_KEY"]
    assert found["reasoning_gym"]["needs"] == ["package reasoning-gym"]
    assert "give exactly one of target (a URL)" in found["openenv_atari"]["fault"]
    assert found["whodunit_mini_multiply"]["providers"] == ["openreward", "local"]
