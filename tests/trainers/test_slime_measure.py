"""`parity measure` of Slime: every option within the bar, or explained; planted faults are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.trainers.slime_faults import FAULTS, NOTHING
from tests.trainers.slime_setup import needs_slime
from xp.cli.parity_measure import measure, table, unexplained
from xp.worker.parity.recorded import BAR

pytestmark = [needs_slime, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    file = tmp_path_factory.mktemp("faults") / "seen.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainers.slime_faults", str(file)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, float] = json.loads(file.read_text())
    print(json.dumps(found, indent=1))
    return found


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_a_planted_fault_is_seen_and_nothing_without_one(name: str, seen: dict[str, float]) -> None:
    assert seen[name] < BAR if name.startswith(NOTHING) else seen[name] > BAR


@pytest.mark.slow
def test_every_option_is_the_papers_or_explained() -> None:
    measured = measure((), ["slime"], {"slime": sys.executable})
    print("\n".join(table(measured)))
    assert unexplained(measured) == []
