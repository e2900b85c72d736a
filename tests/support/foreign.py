"""Run directories as somebody else could have made them, and programs of a cluster that note that they were called."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from xp.composition import compose, to_yaml
from xp.execution.record import begun_here
from xp.spec import RunSpec

PROGRAMS = ("scancel", "scontrol", "squeue", "sbatch", "modal", "ray", "docker", "kill")
TIME = "2026-01-01T00:00:00.000+00:00"


def record(
    run_id: str, *, status: str = "running", attempt: dict[str, Any] | None = None, **stage: Any
) -> str:
    """A `run.json` of one attempt with one stage, any field of which may be another."""
    begun = {
        "name": "train",
        "status": status,
        "exit_code": None,
        "started": TIME,
        "ended": None,
        "log": f"runs/{run_id}/attempt_1/train/log.txt",
        "launcher": "slurm",
        "native_id": "7",
    }
    provenance = {"xp": "0.1.0", "python": "3.11", "commit": None, "is_dirty": None, "versions": {}}
    whole = {
        "number": 1,
        "status": status,
        "started": TIME,
        "ended": None,
        "provenance": provenance,
        "stages": [begun | stage],
        "supervisor": None,
        "host": None,
    }
    attempts = [whole | (attempt or {})]
    whole = {"format": 1, "run_id": run_id, "status": status, "secrets": [], "attempts": attempts}
    return json.dumps(
        whole | {"user": "somebody", "directory": f"/home/somebody/outputs/runs/{run_id}"}
    )


def leave_run(outputs: Path, name: str, text: str, spec: RunSpec | None = None) -> Path:
    """The directory of a run that a cluster has, as an archive of it would unpack."""
    run = outputs / "runs" / name
    (run / "attempt_1" / "train").mkdir(parents=True)
    made = spec or compose([f"outputs={outputs}"])
    (run / "spec.yaml").write_text(to_yaml(made))
    (run / "run.json").write_text(text)
    (run / "attempt_1" / "train" / "log.txt").write_text("it trains\n")
    section = compose(["launcher=slurm", "launcher.detach=true"]).launcher.model_dump(mode="json")
    (run / "attempt_1" / "plan.json").write_text(json.dumps({"spec": {"launcher": section}}))
    return run


def make_ours(run: Path) -> None:
    """Changes the record of a run that was left to one of this user in this directory."""
    user, directory = begun_here(run)
    value = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(value | {"user": user, "directory": directory}))


def leave_programs(directory: Path) -> Path:
    """Programs that write their arguments to the returned file and exit 1."""
    calls = directory / "calls.txt"
    for name in PROGRAMS:
        file = directory / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\nexit 1\n')
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return calls


def contents(root: Path) -> dict[str, Any]:
    """Everything below a directory: name -> bytes, or where a link points."""
    return {
        str(path.relative_to(root)): path.readlink()
        if path.is_symlink()
        else path.is_file() and path.read_bytes()
        for path in root.rglob("*")
    }
