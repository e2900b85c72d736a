"""`parity measure` of TRL: updates and metrics of every option within the bar, or explained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.trainers.parity_model import model_directory
from tools.parity.measure import ParityMeasure, case_of, measure, spec_of, table, unexplained
from tools.parity.options import OPTIONS
from tools.parity.program import measured
from tools.parity.recorded import batch_of
from tools.parity.trl_program import updates

pytestmark = pytest.mark.timeout(3000)


QUICK = ("updates_per_step=2", "algorithm=gspo", "loss_aggregation=constant")
"""Options of another schedule, another ratio and another mean; the slow test has all."""


@pytest.mark.parametrize("name", QUICK)
def test_updates_and_metrics_of_an_option_are_the_papers(name: str, tmp_path: Path) -> None:
    (option,) = (option for option in OPTIONS if option.name == name)
    case = case_of(option, spec_of(option, "trl", ()))
    cell = measured(
        case,
        batch_of(case.rule),
        model_directory(),
        tmp_path,
        updates,
    )
    assert unexplained(ParityMeasure((), {option.name: {"trl": cell}})) == []
    assert {
        "training/kl",
        "training/entropy",
        "training/clip_fraction",
        "training/logprob_gap",
    } <= set(cell["reported"])


@pytest.mark.slow
def test_every_option_is_the_papers_or_explained() -> None:
    found = measure((), ["trl"], {"trl": sys.executable})
    print("\n".join(table(found)))
    assert unexplained(found) == []
