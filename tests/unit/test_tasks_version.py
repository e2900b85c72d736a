"""A set is named by the version that an environment declares of its tasks, not by every byte beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.support.fake_session import RULES
from tests.support.modules import found_at
from tests.support.sections import replace
from xp.envs.builtin.mystery import TOOLS, generate_case
from xp.envs.builtin.whodunit_mini import NUM_TASKS, TASKS_VERSION
from xp.envs.config import EnvConfig
from xp.tasks.request import source_digest


def served(module: str) -> EnvConfig:
    return replace(RULES, name="a", provider="openreward", target=None, serve=f"{module}:Env")


@pytest.mark.parametrize("statement", ['TASKS_VERSION = "{}"', 'TASKS_VERSION: Final = "{}"'])
def test_a_module_that_declares_its_tasks_version_counts_by_it_alone(
    tmp_path: Path, statement: str
) -> None:
    package = tmp_path / "games"
    package.mkdir()
    (package / "__init__.py").touch()
    module = package / "riddle.py"
    digests = []
    for version, comment in (("1", "one"), ("1", "two"), ("2", "two")):
        module.write_text(
            f"raise SystemExit('must not be imported')  # {comment}\n{statement.format(version)}\n"
        )
        (package / "neighbour.py").write_text(f"text = {comment!r}\n")
        digests.append(found_at(tmp_path, source_digest, served("games.riddle")))
    assert digests[0] == digests[1] != digests[2]


def test_a_version_in_a_function_or_broken_module_declares_nothing(tmp_path: Path) -> None:
    module = tmp_path / "riddle.py"
    for text in ("def f():\n    TASKS_VERSION = '1'\n", "TASKS_VERSION = '1'\nthis is no python\n"):
        module.write_text(text)
        before = found_at(tmp_path, source_digest, served("riddle"))
        module.write_text(f"{text}# changed\n")
        assert found_at(tmp_path, source_digest, served("riddle")) != before


def test_the_mini_mysteries_are_those_of_their_version() -> None:
    """Where this fails, the tasks changed: raise TASKS_VERSION and put the new digest here."""
    content = hashlib.sha256(repr((NUM_TASKS, TOOLS)).encode())
    for split, size in NUM_TASKS.items():
        for index in range(0, size, size // 100):
            case = generate_case(split, index)
            content.update(f"{case!r} {case.prompt}".encode())
    assert TASKS_VERSION == "1"
    assert content.hexdigest()[:16] == "ecb3055962d3ddac"
