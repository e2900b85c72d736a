"""`make diagnose-check`: makes every run of tests.planted.runs and holds `runs diagnose` to what it must say of each.

`python -m tests.planted [NAME...] [--directory DIR] [--record]`; `--record` keeps what the rules read of each run in
tests/recorded/planted, where an ordinary test reads it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.planted.recorded import RECORDED, record
from tests.planted.runs import RUNS, complaints_of

ROOT = Path(__file__).parents[2]
DEADLINE_S = 3600


def main() -> int:
    """Make the runs; returns 1 where the diagnosis of one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument(
        "names", nargs="*", choices=[[], *RUNS], metavar="NAME", help="these runs alone"
    )
    parser.add_argument("--directory", type=Path, help="keep the runs here")
    parser.add_argument(
        "--record", action="store_true", help=f"keep what the rules read in {RECORDED}"
    )
    given = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = (given.directory or Path(temporary)).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        for file in ("faults.py", "stale_faults.py"):
            shutil.copy(Path(__file__).parent / file, directory)
        for name in given.names or RUNS:
            began = time.monotonic()
            run = make(directory, name)
            found = diagnosed(directory, run)
            complaints = complaints_of(RUNS[name], found["verdict"], found["symptoms"])
            print(line(name, found, time.monotonic() - began, complaints), flush=True)
            wrong += complaints
            if given.record:
                record(run, name)
    print(f"{len(given.names or RUNS)} runs, {len(wrong)} complaints")
    return int(bool(wrong))


def make(directory: Path, name: str) -> Path:
    """Run it to its end and return its directory; a training may stop early, but must have begun."""
    words = (f"name={name.replace('_', '-')}", *RUNS[name].words)
    done = _xp(directory, *words)
    (directory / f"{name}.log").write_text(done.stdout + done.stderr)
    found = sorted((directory / "outputs/runs").glob(f"{name.replace('_', '-')}-2*"))
    if not found or not (found[-1] / "metrics.jsonl").is_file():
        raise SystemExit(
            f"{name}: nothing was trained:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return found[-1]


def diagnosed(directory: Path, run: Path) -> dict[str, Any]:
    """What `runs diagnose` says, as its user reads it."""
    done = _xp(directory, "runs", "diagnose", run.name, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line(name: str, found: dict[str, Any], seconds: float, complaints: list[str]) -> str:
    """A row of the table of runs."""
    named = ", ".join(
        one["rule"] + ("" if one["severity"] != "note" else " (note)") for one in found["symptoms"]
    )
    what = f"| `{name}` | {RUNS[name].what} | {named or 'nothing'} | {found['verdict']}: {found['reason']} |"
    return f"{what} {seconds:.0f} s {'; '.join(complaints) or 'as it must be'}"


def _xp(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    command = [sys.executable, "-m", "xp", *words]
    return subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=environment,
    )


if __name__ == "__main__":
    raise SystemExit(main())
