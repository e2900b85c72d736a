"""The batch algebra: what it proposes is legal, changes little, and is said with formula and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.tables import rows
from xp.backends.skyrl.control.constraints import CONSTRAINTS as SKYRL
from xp.backends.slime.control.constraints import CONSTRAINTS as SLIME
from xp.backends.trl.control.constraints import CONSTRAINTS as TRL
from xp.composition import compose
from xp.fields.batch_shape import BatchShape, batch_shape
from xp.planning.batch import (
    FIELDS,
    HEADS,
    MEGATRON,
    NOT_MEGATRON,
    Constraint,
    Tier,
    arithmetic,
    broken,
    nearest_legal,
    placement,
)

CONSTRAINTS = {"trl": TRL, "skyrl": SKYRL, "slime": SLIME}


def settings() -> st.SearchStrategy[BatchShape]:
    default = batch_shape(compose([]))
    return st.builds(
        lambda prompts, group, updates, micro, per_node: replace(
            default, prompts=prompts, group=group, updates=updates, micro=micro, per_node=per_node
        ),
        st.integers(1, 40),
        st.integers(2, 16),
        st.integers(1, 8),
        st.integers(1, 32),
        st.sampled_from([1, 2, 3, 4, 8]),
    )


@pytest.mark.parametrize("backend", CONSTRAINTS)
@hypothesis_settings(deadline=None)
@given(batch=settings())
def test_there_is_a_legal_proposal_and_the_cheapest_comes_first(
    backend: str, batch: BatchShape
) -> None:
    constraints = CONSTRAINTS[backend]
    found = nearest_legal(batch, constraints)
    assert found or not broken(batch, constraints)
    numbers = {path: name for name, (path, _) in FIELDS.items()}
    for proposal in found:
        changed = replace(
            batch, **{numbers[path]: value for path, value in proposal.changes.items()}
        )  # type: ignore[arg-type]
        assert broken(changed, constraints) == []
    assert [one.cost for one in found] == sorted(one.cost for one in found)


SHAPE = BatchShape(
    8,
    4,
    1,
    4,
    2,
    2,
    1,
    1,
    2,
    None,
    1,
    8,
    False,
    None,
    None,
    8,
    2,
    6,
    None,
)
"""Eight accelerators that train by tensor 2 and pipeline 2, on two ranks."""


@pytest.mark.parametrize(("changes", "fields"), rows("layouts", ""))
def test_which_layouts_are_legal(changes: str, fields: list[str]) -> None:
    numbers = {name: int(value) for name, value in (word.split("=") for word in changes.split())}
    shape = replace(SHAPE, **numbers)  # type: ignore[arg-type]
    found = broken(shape, (*placement("source"), HEADS, *MEGATRON))
    names = sorted(constraint.field.removeprefix("backend.") for constraint in found)
    assert names == " ".join(fields).split()


def test_a_layout_is_legal_by_itself_and_has_parts_that_only_megatron_divides() -> None:
    assert broken(SHAPE, (*placement("source"), HEADS, *MEGATRON)) == []
    assert broken(SHAPE, NOT_MEGATRON)
    assert broken(replace(SHAPE, tensor=1, pipeline=1), NOT_MEGATRON) == []


def needs(holds: Callable[[BatchShape], bool], tier: Tier = Tier.BATCH) -> tuple[Constraint, ...]:
    return (Constraint(tier, "field", "formula", holds, lambda _: "numbers", "source"),)


MICRO, PROMPTS, GROUP, UPDATES = (
    FIELDS[name][0] for name in ("micro", "prompts", "group", "updates")
)
TENSOR, PIPELINE, CONTEXT = (FIELDS[name][0] for name in ("tensor", "pipeline", "context"))


@pytest.mark.parametrize(
    ("changes", "constraints", "proposals"),
    # Each number costs its weight x (1/4 + |log2(new / old)|); log2(5/4) = 0.3219, log2(8/7) = 0.1926.
    [
        (
            {"micro": 7},
            needs(lambda s: 24 % s.micro == 0),
            {f"{MICRO}=8": 0.4426, f"{MICRO}=6": 0.4724, f"{MICRO}=12": 1.0276},
        ),
        # The micro-batch follows another number of episodes: of 10 x 4 / 2 by one that divides 20.
        (
            {"micro": 8},
            needs(lambda s: s.prompts == 10 and s.episodes // s.ranks % s.micro == 0),
            {f"{PROMPTS}=10 {MICRO}=10": 2.8596},
        ),
        # A layout is changed by one or two numbers, or by one and the number of episodes.
        (
            {},
            needs(lambda s: s.ranks == 1, Tier.PLACEMENT),
            {f"{TENSOR}=4": 2.5, f"{PIPELINE}=4": 2.5, f"{CONTEXT}=2": 2.5},
        ),
        (
            {},
            needs(lambda s: s.tensor == s.pipeline == 1, Tier.PLACEMENT),
            {f"{TENSOR}=1 {PIPELINE}=1": 5.0},
        ),
        ({}, needs(lambda _: False), {}),
    ],
)
def test_the_nearest_layouts_and_their_costs(
    changes: dict[str, int], constraints: tuple[Constraint, ...], proposals: dict[str, float]
) -> None:
    nearest = nearest_legal(replace(SHAPE, **changes), constraints)  # type: ignore[arg-type]
    assert {str(one): one.cost for one in nearest} == {
        text: pytest.approx(cost, abs=1e-4) for text, cost in proposals.items()
    }


def test_a_micro_batch_is_changed_before_the_experiment_is() -> None:
    batch = batch_shape(compose(["training.prompts_per_step=1024", "training.micro_batch_size=7"]))
    assert list(nearest_legal(batch, TRL)[0].changes) == ["training.micro_batch_size"]


def test_the_arithmetic_multiplies_out() -> None:
    (line,) = arithmetic(compose(["hardware=cpu"]))
    assert (
        line
        == "an update: 64 / 1 = 64 episodes over 1 data-parallel rank, 1 micro-batch of 64 each"
    )
    words = [
        "backend=slime",
        "hardware=h200x8",
        "env=whodunit",
        "model=qwen3-4b",
        "backend.parallel.tensor=2",
        "backend.engine.placement=separate",
        "backend.engine.accelerators=4",
        "training.updates_per_step=2",
        "training.max_tokens_per_micro_batch=9000",
    ]
    assert arithmetic(compose(words)) == [
        "an update: 64 / 2 = 32 episodes over 2 data-parallel ranks, packed up to 9,000 tokens a micro-batch each",
        "accelerators: 4 train (2 data-parallel ranks x tensor 2); 4 engines of 1 on their own 4",
    ]
