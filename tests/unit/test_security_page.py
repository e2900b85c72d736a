"""docs/security.md names tests that exist, and a plan says which servers of a run need no key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from xp.cli.display import show_plan
from xp.compose import compose
from xp.planning.plan import build_plan

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
COMMANDS = [text.split()[1:] for text in re.findall(r"`(T [^`]+)`", PAGE)]


def test_every_part_of_the_page_names_a_test() -> None:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = part.partition("\n")[0]
        if title not in ("Limits", "Reporting"):
            assert "`T tests/" in part, title


def test_every_statement_of_a_list_or_table_names_a_test_or_says_that_it_is_not_tested() -> None:
    blocks = re.split(r"\n(?=\* |\| |\n)", PAGE)
    stated = [one for one in blocks if one.startswith(("* ", "| ")) and not one.startswith(("| it can", "| they can"))]
    assert len(stated) > 40
    assert [one for one in stated if "`T tests/" not in one and "(not tested" not in one] == []


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_of_the_page_runs_tests_that_are_there(words: list[str]) -> None:
    files = [ROOT / word for word in words if word.startswith("tests/")]
    names = words[words.index("-k") + 1] if "-k" in words else "test_"
    assert files
    for file in files:
        assert file.is_file(), file
        assert re.search(rf"def test_\w*{names.removeprefix('test_')}", file.read_text()), (file, names)


@pytest.mark.parametrize(
    ("words", "is_open"),
    [
        (("recipes=whodunit-slime",), False),
        (("recipes=whodunit-slime", "launcher=ray"), True),
        (("recipes=whodunit-slime", "backend.overrides={rollout-external-engine-addrs: 10.0.0.1:1}"), True),
        (("recipes=whodunit-slime", "backend.overrides={sglang-router-ip: 10.0.0.1}"), True),
        (("recipes=whodunit-skyrl",), False),
        (("recipes=whodunit-skyrl", "launcher=ray"), True),
        (("recipes=whodunit-skyrl", "launcher=ray", "launcher.start_head=true"), False),
        (("recipes=whodunit-skyrl", "hardware.num_nodes=2", "launcher=ray", "launcher.address=http://head:8265"), True),
        (("recipes=whodunit-trl",), False),
        (("recipes=whodunit-trl", "hardware.num_nodes=2", "launcher=slurm"), True),
    ],
)
def test_a_plan_says_which_servers_of_a_run_want_no_key(
    words: tuple[str, ...], is_open: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show_plan(build_plan(compose([*words]), "shown"), Path("outputs"), with_files=False)
    doors = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("open: ")]
    assert len(doors) == is_open
    assert all("need no key" in line for line in doors)
