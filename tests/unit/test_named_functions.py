"""The user's functions of a spec, which a plan looks for in their files without an import."""

from __future__ import annotations

from pathlib import Path

import pytest

import xp
from xp.__main__ import main
from xp.errors import ExitCode, XpError
from xp.planning.functions import function_fault

CODE = """
from math import fsum as total
import os.path
raise SystemExit("this module must not be imported")
SCORE = staticmethod(total)
if SCORE:
    def chosen(answer, row): ...
def grade(answer, row): ...
def with_default(answer, row, scale=1.0): ...
def any_number(*values): ...
def alone(answer): ...
def three(answer, row, more): ...
class Grader: ...
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine_of_plan.py").write_text(CODE)
    (tmp_path / "broken_of_plan.py").write_text("def grade(:\n")
    return tmp_path / "mine_of_plan.py"


@pytest.mark.parametrize(
    "name",
    ["grade", "with_default", "any_number", "Grader", "SCORE", "total", "os", "chosen"],
)
def test_what_a_module_binds_is_a_legal_name(name: str) -> None:
    assert function_fault(f"mine_of_plan:{name}", 2) is None
    assert function_fault(f"math:{name}", 2) is None, "a module that is no file of Python"


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("no_module_of_plan:grade", 2, "there is no module no_module_of_plan; set"),
        ("mine_of_plan:grad", 2, "defines no grad (did you mean grade?); set"),
        ("mine_of_plan:alone", 2, "alone(answer) must take 2 arguments by position; change"),
        ("mine_of_plan:three", 2, "three(answer, row, more) must take 2 arguments"),
        ("mine_of_plan:grade", 1, "must take 1 argument by position"),
        ("broken_of_plan:grade", 2, "line 1: invalid syntax; correct"),
    ],
)
def test_a_wrong_name_has_its_cause_and_remedy(name: str, number: int, words: str) -> None:
    assert words in (function_fault(name, number) or "")


KEYS = {
    "env.reward_fn": [],
    "env.group_reward_fn": [],
    "env.train.curriculum": [],
    "algorithm.advantage_fn": ["algorithm.estimator=custom", "algorithm.advantage_scale=none"],
    "env.grader": ["env=gsm8k_mini"],
    "env.provider": ["env=multiply"],
    "env.serve": [],
    "env.rows": ["env=graded", "env.grader=exact"],
}
"""Key with a function of the user's -> other words of the command."""


@pytest.mark.parametrize("key", KEYS)
def test_a_plan_ends_with_the_fault_of_each_key(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *KEYS[key], f"{key}=mine_of_plan:no_such"]) == ExitCode.CONFIG
    error = " ".join(capsys.readouterr().err.split())
    assert f"{key}=mine_of_plan:no_such" in error
    assert "defines no no_such" in error


@pytest.mark.parametrize(
    "command",
    [
        ["run", "-m", "seed=1,2"],
        ["prepare"],
        ["sft", "sft.data=solve"],
        ["search", "--trials", "1", "training.learning_rate=interval(1e-6,1e-5)"],
    ],
    ids=" ".join,
)
def test_every_command_refuses_it_before_anything_starts(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = tmp_path / "outputs"
    words = [f"outputs={outputs}", "env.reward_fn=mine_of_plan:no_such"]
    assert main([*command, *words]) == ExitCode.CONFIG
    assert "defines no no_such" in " ".join(capsys.readouterr().err.split())
    assert not [*outputs.glob("runs/*")]
    assert not [*outputs.glob("tasks/*")]


def test_the_python_interface_refuses_it_too(tmp_path: Path) -> None:
    spec = xp.compose(f"outputs={tmp_path}", "env.reward_fn=mine_of_plan:no_such")
    for start in (xp.plan, xp.run):
        with pytest.raises(XpError, match="defines no no_such") as raised:
            start(spec)
        assert raised.value.code is ExitCode.CONFIG
    assert not [*tmp_path.glob("runs/*")]
