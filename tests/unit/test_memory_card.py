"""The plan's memory against what one H200 showed (docs/memory.md), and what is decided by it."""

from __future__ import annotations

import pytest

from tools.benchmarks.bench_card import cases
from tools.public_memory import CARD, peak_of, skyrls_update
from xp.composition import compose
from xp.planning.memory.estimate import engine_stays_awake, estimate
from xp.planning.memory.fit import memory_lines

UPDATES = cases()


@pytest.mark.parametrize(("name", "gib"), CARD["updates"].items())
def test_an_update_is_never_below_the_card_and_at_most_a_tenth_above(name: str, gib: float) -> None:
    assert 1 <= estimate(compose(UPDATES[name])).training_peak / (gib * 2**30) <= 1.1


@pytest.mark.parametrize("run", CARD["runs"], ids=lambda run: run["name"])
def test_a_run_is_never_below_the_card_and_at_most_a_tenth_above(run: dict[str, object]) -> None:
    spec = compose(["hardware=h200x1", *run["overrides"]])
    line = "  both fit at once: the engine stays awake during an update"
    assert engine_stays_awake(spec) is (line in memory_lines(spec)) is ("TRL" in str(run["name"]))
    assert 1 <= peak_of(run) / run["peak"] <= 1.1


def test_skyrls_update_is_not_below_the_card() -> None:
    assert 7.34 <= skyrls_update() <= 8.5


@pytest.mark.parametrize(
    "overrides",
    [
        ("backend.engine.memory_fraction=0.95",),
        ("backend=skyrl",),
        ("backend.engine.placement=separate", "backend.engine.accelerators=1", "hardware=a100x2"),
        ("hardware=rtx3070",),
    ],
)
def test_an_engine_sleeps_where_both_do_not_fit_or_the_trainer_has_no_choice(
    overrides: tuple[str, ...],
) -> None:
    spec = compose(
        ["recipes=first-gpu", "hardware=h200x1", "training.micro_batch_size=128", *overrides]
    )
    assert not engine_stays_awake(spec)
