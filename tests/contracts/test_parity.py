"""No field of a spec is dropped: each backend says what it makes of it, and renders it or refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from xp.backends.base import Fit, Places, meant_fields
from xp.compose import compose, from_container
from xp.errors import XpError
from xp.parity import REFERENCE, markdown, rows, specs_of
from xp.plan import render_module
from xp.spec import BackendName, RunSpec

PLACES = Places(run="runs/r", attempt=1, tasks="tasks/t")
SPECS = {
    "reference": REFERENCE,
    "experts": ("env=whodunit", "model=qwen3-30b-a3b", "hardware=h200x8"),
    "laptop": ("env=whodunit_mini",),
}
CARRIED_BY_THE_RECORD = {"model.name", "algorithm.name"}
"""Names: they are in the run's record and change nothing that a trainer does."""


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("overrides", SPECS.values(), ids=list(SPECS))
def test_a_backend_says_what_it_makes_of_every_field(backend: BackendName, overrides: tuple[str, ...]) -> None:
    spec = compose([*overrides, f"backend={backend}"])
    assert set(render_module(spec).meanings(spec)) == set(meant_fields(spec))


@pytest.mark.parametrize("backend", list(BackendName))
def test_what_is_not_exact_has_a_note(backend: BackendName) -> None:
    spec = compose([*REFERENCE, f"backend={backend}"])
    for field, meaning in render_module(spec).meanings(spec).items():
        assert (meaning.fit is Fit.EXACT) or meaning.note, field


def test_the_table_in_the_docs_is_the_backends_own() -> None:
    file = Path(__file__).parents[2] / "docs/parity.md"
    assert file.read_text() == markdown(rows(specs_of(REFERENCE))), "run make docs"


def changed(spec: RunSpec, path: str) -> Iterator[RunSpec]:
    """The spec with other legal values at a key path."""
    container = spec.model_dump(mode="json")
    *parents, last = path.split(".")
    node: Any = container
    value: Any = spec
    for part in parents:
        node, value = node[part], getattr(value, part)
    now = getattr(value, last)
    for other in others(now, path):
        node[last] = other
        try:
            yield from_container(container)
        except XpError:
            continue
    node[last] = now


def others(now: Any, path: str) -> list[Any]:
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, Enum):
        return [one.value for one in type(now) if one is not now]
    if isinstance(now, int):
        return [now * 2, now // 2, now + 1]
    if isinstance(now, float):
        return [now / 2, now * 2, now + 0.1]
    if isinstance(now, str):
        return ["other"]
    if isinstance(now, dict):
        return [{"enable_thinking": False}]
    if path == "model.lora":
        return [{"rank": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": None}]
    return [2, 8, 20_000]


def rendered(spec: RunSpec) -> str:
    return str([(stage.name, stage.job) for stage in render_module(spec).stages(spec, PLACES)])


LIVE = {
    "algorithm.importance_cap": "algorithm.importance_correction=token",
    "algorithm.kl_estimator": "training.kl_coef=0.01",
}
"""What makes a field matter that otherwise has no effect anywhere."""


def says_so(spec: RunSpec, field: str) -> bool:
    """Whether the backend owns up to doing the same for another value."""
    meaning = render_module(spec).meanings(spec)[field]
    return meaning.fit is Fit.EMULATED or meaning.receives.startswith(("nothing", "checked"))


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("name", ["reference", "laptop"])
def test_a_field_that_changes_changes_the_job_or_is_refused(backend: BackendName, name: str) -> None:
    plain = compose([*SPECS[name], f"backend={backend}"])
    module = render_module(plain)
    if module.refusals(plain):
        pytest.skip(f"backend={backend} does not take this spec")
    dropped = []
    for field in meant_fields(plain):
        if field in CARRIED_BY_THE_RECORD or field.startswith("model.architecture") or field == "model.path":
            continue
        spec = compose([*SPECS[name], f"backend={backend}", LIVE[field]]) if field in LIVE else plain
        accepted = [other for other in changed(spec, field) if not module.refusals(other)]
        if accepted and module.meanings(spec)[field].fit is Fit.UNSUPPORTED:
            dropped.append(f"{field} is called unsupported and is not refused")
        elif all(rendered(other) == rendered(spec) and not says_so(other, field) for other in accepted) and accepted:
            dropped.append(f"{field} changes nothing, and nobody says so")
    assert dropped == []
