"""What `parity measure` found is whole, within its bar or explained; what it could not measure is named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tools.pages import MEASURED
from tools.parity import __main__ as program
from tools.parity import measure as parity_measure
from tools.parity.measure import (
    PROGRAMS,
    SKIPPED,
    ParityMeasure,
    case_of,
    largest,
    measure,
    reported,
    section,
    spec_of,
    unexplained,
)
from tools.parity.options import OPTIONS, REPORTED, Option
from tools.parity.recorded import BAR, batch
from xp.errors import XpError
from xp.planning.backend import backend_of

SAID = json.loads(MEASURED.read_text())
COMMITTED = ParityMeasure((), SAID["options"])


def test_the_committed_measure_has_every_option_on_every_backend() -> None:
    assert list(COMMITTED.options) == [option.name for option in OPTIONS]
    assert all(set(cells) == set(PROGRAMS) for cells in COMMITTED.options.values())
    assert SAID["bar"] == BAR


def test_every_difference_above_the_bar_has_a_reason_and_every_reason_a_difference() -> None:
    assert unexplained(COMMITTED) == []
    for option in OPTIONS:
        for backend in option.why:
            value = largest(COMMITTED.options[option.name][backend])
            assert value is not None
            assert value > BAR, (option.name, backend)


def test_what_the_measure_says_is_refused_is_refused() -> None:
    for option in OPTIONS:
        for backend, cell in COMMITTED.options[option.name].items():
            if "refused" in cell:
                spec = spec_of(option, backend, ())
                assert cell["refused"] == str(backend_of(spec).refusals(spec)[0])


def test_what_a_trainer_reports_is_the_papers_or_has_a_reason() -> None:
    found = {(backend, metric): value for backend, metric, value in reported(COMMITTED)}
    assert {backend for backend, _ in found} == set(PROGRAMS)
    assert {"training/loss", "training/kl", "training/entropy"} <= {metric for _, metric in found}
    assert {key for key, value in found.items() if value > BAR} == set(REPORTED)


def test_each_trainer_applies_the_learning_rate_that_xp_means() -> None:
    schedules = [name for name in COMMITTED.options if name.startswith(("lr_schedule=", "warmup_updates="))]
    assert len(schedules) == 5
    rates = [cell["learning_rate"] for name in schedules for cell in COMMITTED.options[name].values()]
    assert max(rates) < BAR


def test_two_ranks_and_a_critic_are_measured_on_every_backend_that_takes_them() -> None:
    cells = [
        (option, backend, cell)
        for option, by_backend in COMMITTED.options.items()
        if "two ranks" in option or "ppo" in option
        for backend, cell in by_backend.items()
        if "refused" not in cell
    ]
    assert {backend for option, backend, _ in cells if option == "two ranks"} == set(PROGRAMS)
    assert {backend for option, backend, _ in cells if "ppo" in option} == {"skyrl", "slime"}
    for option, backend, cell in cells:
        assert largest(cell) is not None, (option, backend)
        assert ("critic_first_update" in cell) == ("ppo" in option), (option, backend)


def test_another_reported_metric_is_named() -> None:
    cell = {"loss": 0.0, "reported": {"training/kl": [1.0, 1.1]}}
    assert unexplained(ParityMeasure((), {"algorithm=grpo": {"slime": cell}})) == [
        "slime reports another training/kl: it differs by 9.1e-02; expected at most 1e-05"
    ]


def test_an_option_that_a_trainer_is_not_measured_for_says_why() -> None:
    for option in OPTIONS:
        for backend, reason in option.not_on.items():
            assert COMMITTED.options[option.name][backend] == {SKIPPED: reason}


def test_a_difference_without_a_reason_and_a_missing_trainer_are_named() -> None:
    cells = {"trl": {"gradient": 2e-5, "loss": 0.0}, "skyrl": {"missing": "python has no skyrl"}}
    assert unexplained(ParityMeasure((), {"algorithm=grpo": cells})) == [
        "trl, algorithm=grpo: the update differs by 2.0e-05; expected at most 1e-05",
        "skyrl, algorithm=grpo: python has no skyrl",
    ]


def test_a_trainer_that_is_not_installed_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(parity_measure, "OPTIONS", (Option("only"),))
    measured = measure((), ["skyrl"], {"skyrl": str(tmp_path / "python")})
    assert unexplained(measured) == [
        f"skyrl, only: {tmp_path}/python has no skyrl: --python skyrl=PATH names the one that has it"
    ]


def test_a_backend_that_cannot_be_measured_is_refused() -> None:
    with pytest.raises(XpError, match="tinker cannot be measured; expected trl, skyrl, slime"):
        measure((), ["tinker"], {})


def test_a_case_holds_the_specs_own_words() -> None:
    option = Option("gspo", ("algorithm=gspo", "training.kl_coef=0.25"))
    case = case_of(option, spec_of(option, "trl", ("training.updates_per_step=2",)))
    assert (case.rule.ratio_level, case.rule.kl_coef, case.num_updates) == ("sequence", 0.25, 6)
    assert json.loads(case.config)["grpo"]["importance_sampling_level"] == "sequence"


def test_the_batch_has_what_trainers_get_wrong() -> None:
    episodes = batch()
    assert len({one.response_ids for one in episodes}) == len(episodes)
    assert len({one.prompt_ids for one in episodes}) == len({len(one.prompt_ids) for one in episodes}) == 4
    assert {sum(one.reward is not None for one in episodes if one.group == group) for group in range(4)} == {2, 3, 4}
    truncated = [one for one in episodes if one.is_truncated]
    assert len(truncated) == 2
    assert all(sum(one.trained(False)) > 0 == sum(one.trained(True)) for one in truncated)
    assert any(0 in one.mask for one in episodes)
    assert not any(replace(one, reward=None).trained(False)[0] for one in episodes)


def test_docs_without_a_measure_have_no_section(tmp_path: Path) -> None:
    assert section(tmp_path / "measured.json") == []


def test_a_file_that_cannot_be_written_ends_it_before_the_measurement(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nope" / "x.json"):
        with pytest.raises(OSError, match=re.escape(str(place))):
            program.main(["--out", str(place)])
