"""No field of a spec is dropped: each backend says what it makes of it, and renders it or refuses it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tools.pages import REFERENCE, parity_page
from xp.contrib.contracts.backend import BackendSuite
from xp.contrib.contracts.fields import ABOUT_THE_PLAN, changed, composed, dropped, rendered
from xp.fields.sft import SFT
from xp.fields.support import Support, meant_fields
from xp.fields.table import BY_XP, FIELDS, columns_of
from xp.lib.nested import upwards
from xp.planning.backend import backend_of, spec_refusals
from xp.spec import BackendName, RunSpec, schema_fields

ALGORITHMS = {
    "gspo": ("algorithm=gspo",),
    "cispo": ("algorithm=cispo",),
    "rloo": ("algorithm=rloo",),
    "reinforce_pp": ("algorithm=reinforce_pp",),
    "reinforce_pp_baseline": ("algorithm=reinforce_pp_baseline",),
    "maxrl": ("algorithm=maxrl",),
    "sapo": ("algorithm=sapo",),
    "ppo": ("algorithm=ppo",),
    "ppo with a rate": ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
    "custom": ("algorithm=custom", "algorithm.advantage_fn=my_pkg.algorithms:mine"),
    "opd": ("algorithm=opd", "algorithm.distill.teacher=Org/Teacher"),
    "opd on a server": (
        *(
            "algorithm=opd",
            "algorithm.distill.teacher=teacher",
            "algorithm.distill.url=http://127.0.0.1:8000/v1",
        ),
        "algorithm.distill.key=TEACHER_KEY",
    ),
}
"""On the reference: what brings fields of the algorithm to life that are null or without effect there."""
NEEDED = {
    ("slime", "ppo"): ("backend.convert_model=true",),
    ("slime", "opd"): ("backend.convert_model=true",),
    ("skyrl", "opd"): ("training.kl_coef=0",),
}
"""What a backend wants with an algorithm before it takes it."""


def with_algorithm(name: str, backend: BackendName) -> tuple[str, ...]:
    needed = NEEDED.get((backend.value, name.partition(" ")[0]), ())
    return (*REFERENCE, *ALGORITHMS[name], *needed, f"backend={backend}")


def check_meanings(spec: RunSpec) -> None:
    """Every field has a meaning, and one that is not exact has a note."""
    meanings = backend_of(spec).meanings(spec)
    assert set(meanings) == set(meant_fields(spec))
    for field, meaning in meanings.items():
        assert meaning.receives, field
        assert bool(meaning.note) == (meaning.support is not Support.EXACT), field


def test_a_field_is_in_the_table_once() -> None:
    times = Counter(field.path for field in (*FIELDS, *SFT))
    assert [path for path, number in times.items() if number > 1] == []


MODULES = {path for path, column in BY_XP.items() if column.implemented_by}
PATHS = [path for path, _ in schema_fields(RunSpec)]
SECTIONS = {above for path in PATHS for above in upwards(path) if above != path}
LEAVES = [
    re.sub(r"\.?\*", "", path.replace("env.members.*", "env"))
    for path in PATHS
    if path not in SECTIONS
]


@pytest.mark.parametrize("backend", list(BackendName))
def test_every_field_has_a_column_or_a_module_of_xp(backend: BackendName) -> None:
    homes = {*MODULES, *columns_of((*FIELDS, *SFT), backend)}
    assert [path for path in LEAVES if not homes & {*upwards(path)}] == []


def test_the_table_in_the_docs_is_the_backends_own() -> None:
    file = Path(__file__).parents[2] / "docs/parity.md"
    assert file.read_text() == parity_page(), "run make docs"


class TestTrl(BackendSuite):
    words = (*REFERENCE, "backend=trl")


class TestTrlOnALaptop(BackendSuite):
    words = ("env=whodunit_mini", "backend=trl")


class TestSkyrl(BackendSuite):
    words = (*REFERENCE, "backend=skyrl")


class TestSlime(BackendSuite):
    words = (*REFERENCE, "backend=slime")


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_changed_algorithm_field_changes_the_job_or_is_refused(
    backend: BackendName, name: str
) -> None:
    base = with_algorithm(name, backend)
    plain = composed(base)
    check_meanings(plain)
    if spec_refusals(plain):
        refused = {(BackendName.SKYRL, "opd on a server"), (BackendName.SLIME, "sapo")}
        assert backend is BackendName.TRL or (backend, name) in refused, spec_refusals(plain)
        pytest.skip(f"backend={backend} has no {name}")
    module = backend_of(plain)
    reference = composed((*REFERENCE, f"backend={backend}"))
    known = module.meanings(reference)
    new = [
        field for field, meaning in module.meanings(plain).items() if meaning != known.get(field)
    ]
    assert dropped(base, [field for field in new if is_of_the_algorithm(field)]) == []
    columns = columns_of(FIELDS, backend)
    keys = [key for path, column in columns.items() for key in column.keys(path, plain)]
    assert len(keys) == len(set(keys)), "two columns render one key"


@pytest.mark.parametrize("backend", list(BackendName))
@pytest.mark.parametrize("change", ["env.max_turns=3", "env.reward.reduction=last"])
def test_the_rules_of_an_environment_reach_the_job(backend: BackendName, change: str) -> None:
    base = (*REFERENCE, f"backend={backend}")
    assert rendered(composed((*base, change))) != rendered(composed(base))


@pytest.mark.parametrize("backend", list(BackendName))
def test_a_changed_field_of_a_fine_tuning_changes_the_job_or_is_refused(
    backend: BackendName, tmp_path: Path
) -> None:
    (tmp_path / "talk.jsonl").touch()
    base = (
        *REFERENCE,
        f"backend={backend}",
        f"sft.data={tmp_path}/talk.jsonl",
        "training.reference=sft",
    )
    spec = composed(base)
    assert spec_refusals(spec) == []
    check_meanings(spec)
    meanings = backend_of(spec).meanings(spec)
    fields = [field for field in meanings if field.startswith("sft.")]
    assert {f"sft.{name}" for name in type(spec.sft).model_fields} == set(fields)
    assert dropped(base, fields) == []


def is_of_the_algorithm(field: str) -> bool:
    return field.startswith("algorithm.") or field == "training.critic_learning_rate"


def test_no_field_of_an_algorithm_is_beyond_the_reach_of_these_changes() -> None:
    specs = [composed((*REFERENCE, *algorithm)) for algorithm in ((), *ALGORITHMS.values())]
    fields = {field for spec in specs for field in meant_fields(spec) if is_of_the_algorithm(field)}
    reached = {field for spec in specs for field in meant_fields(spec) if any(changed(spec, field))}
    assert fields - reached - ABOUT_THE_PLAN == set()
