"""`make equivalence`, made small: two seeds of two steps, on TRL's and SkyRL's own training loops."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SKYRL = Path(os.environ.get("SKYRL_PYTHON", ROOT / ".venv-skyrl/bin/python"))
SMALL = (
    "env.train.num_tasks=16",
    "env.held_out.num_tasks=16",
    "training.prompts_per_step=2",
    "training.group_size=4",
    "training.micro_batch_size=8",
    "training.checkpoint_every=1",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not SKYRL.exists(),
        reason="SkyRL's Python is not here: make .venv-skyrl/.done or SKYRL_PYTHON",
    ),
]


def equivalence(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "tools.benchmarks.equivalence",
                "--seeds",
                "1,2",
                "--steps",
                "2",
            ),
            *("--python", f"skyrl={SKYRL}", "--outputs", str(directory), *arguments, *SMALL),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_both_trainers_run_and_are_compared_seed_by_seed(tmp_path: Path) -> None:
    done = equivalence(tmp_path)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((tmp_path / "equivalence/equivalence.json").read_text())
    assert {name: [run["seed"] for run in runs] for name, runs in found["runs"].items()} == {
        "trl": [1, 2],
        "skyrl": [1, 2],
    }
    assert all(len(run["rewards"]) == 2 for runs in found["runs"].values() for run in runs)
    assert all(run["after"]["num_scored"] == 16 for runs in found["runs"].values() for run in runs)
    verdicts = [one["verdict"] for one in found["comparisons"]]
    assert len(verdicts) == 2
    assert done.returncode == int(verdicts != ["equivalent"] * 2)
    assert all(verdict in done.stdout for verdict in verdicts)
    assert (tmp_path / "equivalence/equivalence.png").is_file()

    again = equivalence(tmp_path)  # every run is there
    assert again.returncode == done.returncode, again.stdout[-3000:] + again.stderr[-3000:]
    assert json.loads((tmp_path / "equivalence/equivalence.json").read_text()) == found
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 4
