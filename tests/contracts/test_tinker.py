"""The contract of backends on a service, which is found by its entry point alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.tinker_server import needs_entry_point
from xp.checks.contracts.backend import BackendSuite
from xp.checks.contracts.fields import composed, dropped
from xp.fields.support import Support
from xp.planning.backend import backend_of

ROOT = Path(__file__).parents[2]
REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "backend=tinker", "hardware=tinker")
pytestmark = needs_entry_point


class TestTinker(BackendSuite):
    words = REFERENCE


class TestTinkerOnALaptop(BackendSuite):
    words = ("env=whodunit_mini", "backend=tinker")


def test_a_changed_field_of_a_fine_tuning_changes_the_job_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").touch()
    base = (*REFERENCE, f"sft.data={tmp_path}/talk.jsonl")
    spec = composed(base)
    meanings = backend_of(spec).meanings(spec)
    fields = [field for field in meanings if field.startswith("sft.")]
    assert {f"sft.{name}" for name in type(spec.sft).model_fields} == set(fields)
    assert dropped(base, fields) == []


def test_a_field_without_difference_says_what_it_is_for() -> None:
    spec = composed(REFERENCE)
    for field, meaning in backend_of(spec).meanings(spec).items():
        assert meaning.receives, field
        assert bool(meaning.note) == (meaning.support is not Support.EXACT), field


def test_no_module_outside_the_annex_imports_it() -> None:
    """import-linter checks the rooms; this also holds for an import by name."""
    named = []
    for file in (ROOT / "xp").rglob("*.py"):
        if "contrib/tinker" in str(file):
            continue
        texts = [
            node.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named += [f"{file}: {text}" for text in texts if "contrib.tinker" in text]
    assert named == []
