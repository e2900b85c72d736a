"""A mix of environments, named on the command line or in a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tables import rows
from xp.__main__ import main
from xp.composition import ROOT, compose, origin_of
from xp.composition.mixes import env_name
from xp.planning.plan import build_plan

GPU = ("backend=skyrl", "hardware=a100x4")


@pytest.mark.parametrize(
    "text", ["env=[whodunit,ctf]", "env=whodunit+ctf", "env=[WhoDunIt,GeneralReasoning/CTF]"]
)
def test_a_mix_on_the_command_line_is_the_mix_of_the_file(text: str) -> None:
    spec = compose([text, *GPU])
    assert spec == compose(["env=whodunit_ctf", *GPU])
    assert build_plan(spec, "r").stages


def test_the_members_of_a_mix_take_values_of_their_own() -> None:
    spec = compose(
        ["env=[whodunit,ctf]", "env.members.ctf.weight=2", "env.members.whodunit.max_turns=5"]
    )
    assert {name: member.weight for name, member in spec.env.members.items()} == {
        "whodunit": 1.0,
        "ctf": 2.0,
    }
    assert [member.max_turns for member in spec.env.members.values()] == [5, 20]


def test_a_recipe_names_a_mix_as_a_list(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "both.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /env: [whodunit, ctf]\n"
        "env:\n  members:\n    ctf:\n      weight: 3.0\n"
    )
    spec = compose(["recipes=both"], [tmp_path])
    assert {name: member.weight for name, member in spec.env.members.items()} == {
        "whodunit": 1.0,
        "ctf": 3.0,
    }


def test_each_value_of_a_mix_has_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["env=[whodunit,ctf]", "env.members.ctf.weight=2"]
    origin = origin_of("env.members.ctf.max_turns", overrides)
    places = [mark.file.relative_to(ROOT).as_posix() for mark in origin.marks]
    assert places == ["conf/env/_base.yaml", "conf/env/ctf.yaml"]
    assert main(["explain", "env.members.ctf.weight", *overrides]) == 0
    assert "the command line: env.members.ctf.weight=2" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "names"), rows("env_names", ""))
def test_an_environment_has_its_options_name_or_the_users(words: str, names: list[str]) -> None:
    assert list(compose(words.split()).env.members) == names


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ("./arith.jsonl", "arith"),
        ({"train": "data/gsm8k/train.parquet", "test": "data/gsm8k/test.parquet"}, "gsm8k"),
        ("hf:openai/gsm8k", "gsm8k"),
        ("train.jsonl", "graded"),
    ],
)
def test_rows_in_files_name_an_environment_with_a_grader_of_xps(files: object, name: str) -> None:
    assert env_name("graded", {"provider": "local", "grader": "exact", "rows": files}, {}) == name
