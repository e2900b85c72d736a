"""Diagnoses of real short trainings that `make diagnose-check` recorded: faults are named, good runs raise no alarm."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from tests.planted.recorded import RECORDED, unpack
from tests.planted.runs import RUNS, complaints_of
from xp.execution.record import read_record
from xp.results.evaluation.verdict import diagnose


@pytest.mark.parametrize("name", sorted(file.stem for file in RECORDED.glob("*.json")))
def test_a_recorded_run_is_diagnosed_as_what_it_is(name: str, tmp_path: Path) -> None:
    run = tmp_path / name
    unpack(name, run)
    found = diagnose(run, read_record(run))
    assert (
        complaints_of(
            RUNS[name],
            found.verdict,
            [asdict(one) for one in found.symptoms],
        )
        == []
    )
