"""Every key of the trainers' catalogs has an answer, and the user's own keys reach the stages that they are for."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.support.tables import rows
from xp.cli.display import notice_lines
from xp.composition import compose
from xp.composition.faults import every_key
from xp.composition.native_names import _REFERENCE, _VARIANTS, hint, reference_spec
from xp.fields.support import owners
from xp.planning.backend import backend_of, spec_refusals
from xp.planning.native_keys import NEEDS, AnswerKind, NativeKeys
from xp.planning.plan import build_plan
from xp.spec import RunSpec
from xp.testing.fields import without_spec

BACKENDS = ("trl", "skyrl", "slime")
WORDS = ("env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4", "sft.data=solve:a.b:c")


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


def catalogs(backend: str, spec: RunSpec) -> Iterator[tuple[NativeKeys, Mapping[str, Any]]]:
    """The keys of each stage, and the catalog of their class."""
    module, overrides = render(backend), import_module(f"xp.backends.{backend}.control.overrides")
    if backend == "trl":
        known = overrides.catalog(), overrides.catalog("sft_catalog.json")
    elif backend == "skyrl":
        known = overrides.catalog()["fields"], overrides.sft_catalog()
    else:
        known = overrides.catalog().flags, overrides.catalog().flags
    yield from zip((module.native_keys(spec), module.sft_keys(spec)), known, strict=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_key_of_a_catalog_has_an_answer_whatever_the_spec_renders(backend: str) -> None:
    unanswered = [
        f"{keys.place}.{key}"
        for spec in specs(backend)
        for keys, known in catalogs(backend, spec)
        for key in known
        if keys.answer(key) is None
    ]
    assert unanswered == []


@pytest.mark.parametrize(
    ("backend", "place"), [(backend, place) for backend in BACKENDS for place in (0, 1)]
)
def test_a_table_answers_each_key_once_and_no_key_that_the_trainer_lacks(
    backend: str, place: int
) -> None:
    keys, known = list(catalogs(backend, specs(backend)[0]))[place]
    tables = tomllib.loads(keys.files[0].read_text())
    needs = [(key, group["text"]) for group in tables.pop("needs", ()) for key in group["keys"]]
    names = [
        group.get("below", "") + key
        for table in tables.values()
        for group in table
        for key in group["keys"]
    ]
    assert [name for name, number in Counter(names).items() if number > 1] == []
    matched = [[name for name in names if fnmatchcase(key, name)] for key in known]
    deciding = {
        max(matches, key=lambda one: (one in known, len(one))) for matches in matched if matches
    }
    assert sorted({*names} - deciding) == []
    assert [name for name, _ in needs if not any(fnmatchcase(key, name) for key in known)] == []
    assert {need for _, need in needs} <= {*NEEDS}


MOE = ("--moe-aux-loss-coeff", "--moe-permute-fusion", "--moe-token-dispatcher-type")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_opens_no_key_that_a_field_renders(backend: str) -> None:
    opened = {
        key
        for spec in specs(backend)
        for key in owners(render(backend).COLUMNS, spec)
        if (found := render(backend).native_keys(spec).answer(key))
        and found[0] in (AnswerKind.WARNED, AnswerKind.HARMLESS)
    }
    assert sorted(opened) == sorted(MOE if backend == "slime" else ())


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_fields_that_a_table_names_exist(backend: str) -> None:
    fields = {*every_key(), "hardware"}
    fields |= {name.rpartition(".")[0] for name in fields}
    files = {file for keys, _ in catalogs(backend, specs(backend)[0]) for file in keys.files}
    texts = [
        group["text"]
        for file in files
        for group in tomllib.loads(file.read_text())[AnswerKind.OWNER]
    ]
    assert [
        text for text in texts if re.split(r"[ ;,=]", text)[0].removesuffix(".*") not in fields
    ] == []


def with_own(backend: str, key: str, value: object, place: str = "backend") -> RunSpec:
    spec = _composed(backend)
    section = getattr(spec, place)
    return spec.model_copy(update={place: section.model_copy(update={"overrides": {key: value}})})


@cache
def _composed(backend: str) -> RunSpec:
    return compose([f"backend={backend}", *WORDS])


@pytest.mark.parametrize(("section", "row", "words"), rows("native_keys"))
def test_a_key_is_refused_or_passed_on_with_what_no_longer_holds(
    section: str, row: str, words: list[str]
) -> None:
    (backend, _, sft), (key, _, value) = section.partition(" "), row.partition("=")
    spec = with_own(backend, key, yaml.safe_load(value), sft or "backend")
    refusals = spec_refusals(spec)
    if words[0] not in ("open", "harmless"):
        (refusal,) = refusals
        assert refusal.field.startswith(f"{sft or 'backend'}.overrides.{key}")
        assert words[0] in refusal.reason
        return
    assert refusals == []
    said = [
        line
        for line in notice_lines(build_plan(spec, "r"))
        if f"backend.overrides.{key}" in line and ": " in line
    ]
    assert len([line for line in said if not line.startswith("would pass")]) == (words == ["open"])


SFT = {
    "trl": ("label_smoothing_factor", 0.1),
    "skyrl": ("async_batch_collation", False),
    "slime": ("manual-gc", True),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_a_fine_tuning_reach_its_stage_alone_and_those_of_the_training_do_not(
    backend: str,
) -> None:
    key, value = SFT[backend]
    other, of_training = {
        "trl": ("log_level", "debug"),
        "skyrl": ("trainer.policy.use_torch_compile", True),
        "slime": ("balance-data", True),
    }[backend]
    spec = with_own(backend, other, of_training)
    spec = spec.model_copy(update={"sft": spec.sft.model_copy(update={"overrides": {key: value}})})
    assert spec_refusals(spec) == []
    jobs = {stage.name: without_spec(stage.job.files) for stage in build_plan(spec, "r").stages}
    shown = {"trl": '"{}": ', "skyrl": "{}", "slime": '"--{}"'}[backend]
    assert [shown.format(name) in jobs["sft"] for name in (key, other)] == [True, False]
    assert [shown.format(name) in jobs["train"] for name in (key, other)] == [False, True]


def test_a_key_of_skyrls_policy_is_one_of_its_fine_tuning_too() -> None:
    spec = with_own("skyrl", "fsdp_config", {"fsdp_size": 2}, "sft")
    assert spec_refusals(spec) == []
    (line,) = backend_of(spec).override_lines(spec)
    assert line.startswith("sft.overrides.fsdp_config.fsdp_size: ")
    (stage,) = (one for one in build_plan(spec, "r").stages if one.name == "sft")
    (text,) = (text for name, text in stage.job.files.items() if name.endswith("config.json"))
    assert "trainer.policy.fsdp_config.fsdp_size=2" in json.loads(text)["native_keys"]


def test_no_hint_proposes_a_key_that_turns_the_loss_around() -> None:
    assert "backend.overrides" not in (hint("trainer.algorithm.use_tis=true") or "")


def test_an_empty_mapping_removes_a_recipes_overrides() -> None:
    recipe = "recipes=dapo-slime"
    assert compose([recipe]).backend.overrides != {}
    assert compose([recipe, "backend.overrides={}"]).backend.overrides == {}
    assert compose(
        [recipe, "backend.overrides={}", "backend.overrides.balance-by-flops=true"]
    ).backend.overrides == {"balance-by-flops": True}
    assert compose([recipe, "training={}"]).training == compose([recipe]).training
