"""What `parity measure` found is whole, within its bar or explained; what it could not measure is named."""

from __future__ import annotations

import json

from tools.pages import MEASURED
from tools.parity.measure import (
    PROGRAMS,
    ParityMeasure,
    largest,
    reported,
    spec_of,
    unexplained,
)
from tools.parity.options import OPTIONS, REPORTED
from tools.parity.recorded import BAR
from xp.episode.metric_table import METRICS
from xp.planning.backend import spec_refusals

SAID = json.loads(MEASURED.read_text())
COMMITTED = ParityMeasure((), SAID["options"])


def test_the_committed_measure_has_every_option_on_every_backend() -> None:
    assert list(COMMITTED.options) == [option.name for option in OPTIONS]
    assert all(set(cells) == set(PROGRAMS) for cells in COMMITTED.options.values())
    assert SAID["bar"] == BAR


def test_differences_above_the_bar_and_reasons_match() -> None:
    assert unexplained(COMMITTED) == []
    for option in OPTIONS:
        for backend in option.why:
            value = largest(COMMITTED.options[option.name][backend])
            assert value is not None
            assert value > BAR, (option.name, backend)


def test_what_the_measure_says_is_refused_is_refused() -> None:
    """Of what was measured, each 24th is asked: the others differ by a number."""
    pairs = [(option, backend) for option in OPTIONS for backend in PROGRAMS]
    asked = [
        (option, backend)
        for place, (option, backend) in enumerate(pairs)
        if place % 24 == 0 or "refused" in COMMITTED.options[option.name][backend]
    ]
    specs = {
        (option.name, backend): spec_of(
            option,
            backend,
            (),
        )
        for option, backend in asked
    }
    refusals = {key: spec_refusals(spec) for key, spec in specs.items()}
    refused = {key: str(texts[0]) for key, texts in refusals.items() if texts}
    cells = {(name, backend): COMMITTED.options[name][backend] for name, backend in specs}
    assert refused == {key: cell["refused"] for key, cell in cells.items() if "refused" in cell}
    assert {backend for _, backend in refused} == {"trl", "slime", "tinker"}


NOT_OF_UPDATES = {"training/tokens", "training/staleness", "training/updates"}
"""Metrics of training that are no figures of an update; tests of each trainer's log have them."""


def test_what_a_trainer_reports_is_the_papers_or_has_a_reason() -> None:
    found = reported(COMMITTED)
    for backend in PROGRAMS:
        metrics = {
            "loss",
            "grad_norm",
            "learning_rate",
            "kl",
            "entropy",
            "clip_fraction",
            "logprob_gap",
        }
        if backend in ("skyrl", "slime"):
            metrics |= {"value_loss", "critic_grad_norm", "value_clip_fraction"}
        if backend == "tinker":  # no penalty and no entropy; the rate is xp's own request
            metrics -= {"learning_rate", "kl", "entropy"}
        assert {f"training/{name}" for name in metrics} <= {
            metric for name, metric in found if name == backend
        }
    every = {row.name for row in METRICS if row.name.startswith("training/")}
    assert every - {metric for _, metric in found} == NOT_OF_UPDATES
    for key, reasons in REPORTED.items():
        for word in reasons:
            assert max(value for option, value in found[key].items() if word in option) > BAR, (
                key,
                word,
            )


def test_each_trainer_applies_the_learning_rate_that_xp_means() -> None:
    schedules = [
        name for name in COMMITTED.options if name.startswith(("lr_schedule=", "warmup_updates="))
    ]
    assert len(schedules) == 5
    rates = [
        cell["learning_rate"] for name in schedules for cell in COMMITTED.options[name].values()
    ]
    assert max(rates) < BAR
