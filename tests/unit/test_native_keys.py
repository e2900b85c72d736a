"""Keys of the trainers below backend.overrides: refused with the field or the reason, or passed to their stages alone."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.support.python_files import XP
from tests.support.tables import rows
from xp.cli.display import notice_lines
from xp.composition import compose
from xp.composition.native_names import _REFERENCE, _VARIANTS, reference_spec
from xp.contrib.contracts.fields import without_spec
from xp.fields.field import Refusal
from xp.fields.support import owners
from xp.planning.backend import spec_refusals
from xp.planning.plan import build_plan
from xp.spec import RunSpec

BACKENDS = ("trl", "skyrl", "slime")
WORDS = (
    "env=whodunit",
    "model=qwen2.5-3b-instruct",
    "hardware=a100x4",
    "sft.data=solve:json:dumps",
)


def table_of(backend: str) -> Path:
    return XP / "backends" / backend / "control" / "overrides.toml"


def render(backend: str) -> ModuleType:
    return import_module(f"xp.backends.{backend}.control.render")


@cache
def specs(backend: str) -> list[RunSpec]:
    """Specs that together use all of a backend's columns."""
    found = []
    for variant in _VARIANTS[backend]:
        groups = {key: value for key, value in variant.items() if "." not in key}
        values = {key: value for key, value in variant.items() if "." in key} | {
            "sft.data": "solve"
        }
        found.append(reference_spec({**_REFERENCE, "backend": backend, **groups}, values))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_field_renders_is_refused_whatever_the_spec(backend: str) -> None:
    """A key that only some specs render has its field in the table, so that the others do not pass it."""
    rows_of_all = [owners(render(backend).COLUMNS, spec) for spec in specs(backend)]
    rendered = {key for row in rows_of_all for key, field in row.items() if field}
    passed = {
        key
        for keys in map(render(backend).native_keys, specs(backend))
        for key in rendered
        if keys.fault(key) is None and key not in keys.table.open
    }
    assert passed == set()


def with_own(backend: str, key: str, value: object, place: str = "backend") -> RunSpec:
    spec = _composed(backend)
    section = getattr(spec, place)
    return spec.model_copy(update={place: section.model_copy(update={"overrides": {key: value}})})


@cache
def _composed(backend: str) -> RunSpec:
    return compose([f"backend={backend}", *WORDS])


def refusals_of(section: str, row: str) -> tuple[RunSpec, str, list[Refusal]]:
    """The spec with the user's key of a table's row, the key's path, and the refusals."""
    backend, _, sft = section.partition(" ")
    key, _, value = row.partition("=")
    spec = with_own(backend, key, yaml.safe_load(value), sft or "backend")
    return spec, f"{sft or 'backend'}.overrides.{key}", spec_refusals(spec)


@pytest.mark.parametrize(("section", "row", "words"), rows("native_keys"))
def test_a_key_is_refused_or_passed_with_the_one_sentence(
    section: str, row: str, words: list[str]
) -> None:
    spec, path, refusals = refusals_of(section, row)
    if words != ["passed"]:
        (refusal,) = refusals
        assert refusal.field.startswith(path)
        assert words[0] in refusal.reason
        return
    assert refusals == []
    place, _, key = path.partition(".overrides.")
    sentence = f"{place}.overrides: xp does not know what these keys of the trainer change: {key}"
    (line,) = [line for line in notice_lines(build_plan(spec, "r")) if "does not know" in line]
    assert line.startswith(sentence)


@pytest.mark.parametrize(("section", "row", "words"), rows("broken_promises"))
def test_a_key_that_breaks_a_promise_is_refused(section: str, row: str, words: list[str]) -> None:
    del words
    _, path, (refusal,) = refusals_of(section, row)
    assert refusal.field.startswith(path)
    assert refusal.reason


def test_the_keys_that_break_a_promise_are_forty_and_each_has_its_row() -> None:
    number = 0
    for backend in BACKENDS:
        content = tomllib.loads(table_of(backend).read_text())
        number += len(content["refused"]) + len(content["sft"].get("refused", ()))
    assert number == len(rows("broken_promises")) <= 40


KEYS = {
    "trl": ('"{}": ', "log_level", "debug", "label_smoothing_factor", 0.1),
    "skyrl": ("{}", "trainer.policy.use_torch_compile", True, "async_batch_collation", False),
    "slime": ('"--{}"', "balance-data", True, "manual-gc", True),
}
"""How a job shows a key; a key of the training with its value, and one of a fine-tuning."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_a_fine_tuning_reach_its_stage_alone_and_those_of_the_training_do_not(
    backend: str,
) -> None:
    form, other, of_training, key, value = KEYS[backend]
    spec = with_own(backend, other, of_training)
    spec = spec.model_copy(update={"sft": spec.sft.model_copy(update={"overrides": {key: value}})})
    assert spec_refusals(spec) == []
    jobs = {stage.name: without_spec(stage.job.files) for stage in build_plan(spec, "r").stages}
    assert [form.format(name) in jobs["sft"] for name in (key, other)] == [True, False]
    assert [form.format(name) in jobs["train"] for name in (key, other)] == [False, True]


def test_a_key_of_skyrls_policy_is_one_of_its_fine_tuning_too() -> None:
    spec = with_own("skyrl", "fsdp_config", {"fsdp_size": 2}, "sft")
    assert spec_refusals(spec) == []
    stages = {stage.name: stage.job for stage in build_plan(spec, "r").stages}
    assert "trainer.policy.fsdp_config.fsdp_size=2" in "".join(stages["sft"].files.values())


def test_an_empty_mapping_removes_a_recipes_overrides() -> None:
    recipe = ["recipes=dapo-slime", "backend.overrides={}"]
    assert compose(recipe[:1]).backend.overrides != {}
    assert compose(recipe).backend.overrides == {}
    own = compose([*recipe, "backend.overrides.balance-by-flops=true"])
    assert own.backend.overrides == {"balance-by-flops": True}
