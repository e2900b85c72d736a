"""No field of a spec is dropped: each backend says what it makes of it, and renders it or refuses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from xp.backends.base import RunPaths, Support, meant_fields, render_module
from xp.backends.capability import Row
from xp.backends.skyrl.control import rows as skyrl
from xp.backends.slime.control import rows as slime
from xp.backends.trl.control import rows as trl
from xp.cli.parity import REFERENCE, reference_markdown
from xp.compose import compose, from_container
from xp.errors import XpError
from xp.spec import BackendName, RunSpec

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
SPECS = {
    "reference": REFERENCE,
    "experts": ("env=whodunit", "model=qwen3-30b-a3b", "hardware=h200x8"),
    "laptop": ("env=whodunit_mini",),
}
ALGORITHMS = {
    "gspo": ("algorithm=gspo",),
    "cispo": ("algorithm=cispo",),
    "rloo": ("algorithm=rloo", "algorithm.loss_aggregation=sequence_mean"),
    "reinforce_pp": ("algorithm=reinforce_pp",),
    "ppo": ("algorithm=ppo",),
    "ppo with a rate": ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
    "custom": ("algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:mine"),
}
"""On the reference: what brings fields of the algorithm to life that are null or without effect there."""
NEEDED = {("slime", "ppo"): ("backend.convert_model=true",)}
"""What a backend wants with an algorithm before it takes it."""
ESTIMATORS: tuple[dict[str, Any], ...] = tuple(
    {"estimator": estimator, "advantage_scale": scale, "advantage_fn": function, "critic": critic}
    for estimator, scale, function, critic in (
        ("grpo", "group_std", None, None),
        ("rloo", "none", None, None),
        ("reinforce_pp", "batch_std", None, None),
        ("gae", "batch_std", None, {"discount": 0.9, "gae_lambda": 0.8, "value_clip": 0.3}),
        ("custom", "none", "my_pkg.algorithms:another", None),
    )
)
"""Fields of an estimator, which are legal together only."""
LENGTHS = ("training.num_steps", "training.epochs")
"""One of them is null."""
CARRIED_BY_THE_RECORD = {"model.name", "algorithm.name"}
"""Names: they are in the run's record and change nothing that a trainer does."""


def with_algorithm(name: str, backend: BackendName) -> list[str]:
    needed = NEEDED.get((backend.value, name.partition(" ")[0]), ())
    return [*REFERENCE, *ALGORITHMS[name], *needed, f"backend={backend}"]


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize(
    "overrides",
    [*SPECS.values(), *((*REFERENCE, *algorithm) for algorithm in ALGORITHMS.values())],
    ids=[*SPECS, *ALGORITHMS],
)
def test_a_backend_says_what_it_makes_of_every_field(backend: BackendName, overrides: tuple[str, ...]) -> None:
    spec = compose([*overrides, f"backend={backend}"])
    assert set(render_module(spec).meanings(spec)) == set(meant_fields(spec))


@pytest.mark.parametrize("rows", [trl.ROWS, skyrl.ROWS, slime.ROWS], ids=["trl", "skyrl", "slime"])
def test_a_fact_about_a_field_has_one_home(rows: Sequence[Row]) -> None:
    assert [field for field, times in Counter(row.field for row in rows).items() if times > 1] == []


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("name", [None, *ALGORITHMS])
def test_what_is_not_exact_has_a_note(backend: BackendName, name: str | None) -> None:
    spec = compose([*REFERENCE, f"backend={backend}"] if name is None else with_algorithm(name, backend))
    for field, meaning in render_module(spec).meanings(spec).items():
        assert (meaning.support is Support.EXACT) or meaning.note, field


def test_the_table_in_the_docs_is_the_backends_own() -> None:
    file = Path(__file__).parents[2] / "docs/parity.md"
    assert file.read_text() == reference_markdown(), "run make docs"


def changed(spec: RunSpec, path: str) -> Iterator[RunSpec]:
    """The spec with other legal values at a key path."""
    container = spec.model_dump(mode="json")
    *parents, last = path.split(".")
    node: Any = container
    value: Any = spec
    for part in parents:
        node, value = node[part], getattr(value, part)
    now = getattr(value, last)
    before = dict(node)
    for other in others(now, path):
        node |= other if isinstance(other, Together) else {last: other}
        try:
            yield from_container(container)
        except XpError:
            continue
        finally:
            node |= before


class Together(dict[str, Any]):
    """Values of a field and of its neighbours, that are legal together only."""


def others(now: Any, path: str) -> list[Any]:
    if path in ("algorithm.estimator", "algorithm.advantage_fn", "algorithm.critic"):
        own = [now[:-1]] if path == "algorithm.advantage_fn" and now else []
        return [*own, *(Together(one) for one in ESTIMATORS if one[path.rpartition(".")[2]] != now)]
    if path in LENGTHS and now is None:
        other = next(one for one in LENGTHS if one != path).rpartition(".")[2]
        return [Together({path.rpartition(".")[2]: 7, other: None})]
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
    return meaning.support is Support.EMULATED or meaning.receives.startswith(("nothing", "checked"))


def dropped(base: list[str], fields: Iterable[str]) -> list[str]:
    """Fields that may be changed without anybody noticing."""
    plain = compose(base)
    module, found = render_module(plain), []
    for field in fields:
        if field in CARRIED_BY_THE_RECORD or field.startswith("model.architecture") or field == "model.path":
            continue
        spec = compose([*base, LIVE[field]]) if field in LIVE else plain
        accepted = [other for other in changed(spec, field) if other != spec and not module.refusals(other)]
        if accepted and module.meanings(spec)[field].support is Support.UNSUPPORTED:
            found.append(f"{field} is called unsupported and is not refused")
        elif any(rendered(other) == rendered(spec) and not says_so(other, field) for other in accepted):
            found.append(f"{field} changes nothing, and nobody says so")
    return found


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("name", ["reference", "laptop"])
def test_a_field_that_changes_changes_the_job_or_is_refused(backend: BackendName, name: str) -> None:
    base = [*SPECS[name], f"backend={backend}"]
    plain = compose(base)
    if render_module(plain).refusals(plain):
        pytest.skip(f"backend={backend} does not take this spec")
    assert dropped(base, meant_fields(plain)) == []


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_field_of_an_algorithm_that_changes_changes_the_job_or_is_refused(backend: BackendName, name: str) -> None:
    base = with_algorithm(name, backend)
    plain = compose(base)
    if render_module(plain).refusals(plain):
        assert backend is BackendName.TRL, render_module(plain).refusals(plain)
        pytest.skip("backend=trl has the baseline of a group alone")
    assert dropped(base, [field for field in meant_fields(plain) if is_of_the_algorithm(field)]) == []


def is_of_the_algorithm(field: str) -> bool:
    return field.startswith("algorithm.") or field == "training.critic_learning_rate"


def test_no_field_of_an_algorithm_is_beyond_the_reach_of_these_changes() -> None:
    specs = [compose([*REFERENCE, *algorithm]) for algorithm in ((), *ALGORITHMS.values())]
    fields = {field for spec in specs for field in meant_fields(spec) if is_of_the_algorithm(field)}
    reached = {field for spec in specs for field in meant_fields(spec) if any(changed(spec, field))}
    assert fields - reached - CARRIED_BY_THE_RECORD == set()
