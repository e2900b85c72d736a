"""Stands in for SkyPilot's command and its clouds: runs a job's `run` scripts here, one task after the other.

    sky_cloud.py STATE COMMAND...

STATE is a directory: `volume/` is the outputs root, `jobs/` one directory a job. What a node would see below /outputs,
/xp/code and /xp/jobs is found where it lies on this machine; `setup`, which makes the node's Python, is not executed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from cloud import replace_text, start_worker, tail


def main(state: Path, argv: list[str]) -> int:
    jobs = state / "jobs"
    jobs.mkdir(parents=True, exist_ok=True)
    (state / "volume").mkdir(exist_ok=True)
    match argv:
        case ["jobs", "launch", "--yes", "--detach-run", "--name", name, *secrets, file]:
            return submit(state, jobs / name, secrets[1::2], Path(file))
        case ["work", job, file]:
            return work(state, Path(job), Path(file))
        case ["jobs", "queue", "--refresh", "--all", "--output", "json"]:
            print(
                json.dumps(
                    [
                        row
                        for job in sorted(jobs.iterdir())
                        for row in json.loads((job / "rows").read_text())
                    ]
                )
            )
        case ["jobs", "logs", "--name", name, how]:
            tail(
                jobs / name,
                lambda: how != "--follow" or state_of(jobs / name) not in ("PENDING", "RUNNING"),
            )
            return LOG_CODES[state_of(jobs / name)]
        case ["jobs", "cancel", "--yes", *_, "--name", name]:
            os.killpg(int((jobs / name / "pid").read_text()), signal.SIGTERM)
        case _:
            print(f"no such thing: {argv}", file=sys.stderr)
            return 1
    return 0


LOG_CODES = {"SUCCEEDED": 0, "FAILED": 100, "RUNNING": 101, "PENDING": 101, "CANCELLED": 103}
"""State of a job -> exit code of `sky jobs logs` (JobExitCode in sky/exceptions.py, SkyPilot 0.14.1)."""


def state_of(job: Path) -> str:
    """State of the job as a whole: that of the first task that did not succeed."""
    found = [str(row["status"]) for row in json.loads((job / "rows").read_text())]
    return next((one for one in found if one != "SUCCEEDED"), "SUCCEEDED")


def submit(state: Path, job: Path, secrets: list[str], file: Path) -> int:
    if (state / "FAIL").exists():
        print("no cloud access", file=sys.stderr)
        return 1
    job.mkdir()
    tell(job, [one["name"] for one in tasks(file)], [])
    start_worker(job, __file__, state, "work", job, file, passes=secrets)
    return 0


def tasks(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if "run" in one]


def tell(job: Path, names: list[str], states: list[str]) -> None:
    states = [*states, *["PENDING"] * (len(names) - len(states))]
    rows = [
        {"job_name": job.name, "task_name": name, "status": status}
        for name, status in zip(names, states, strict=True)
    ]
    replace_text(job / "rows", json.dumps(rows))


def work(state: Path, job: Path, file: Path) -> int:
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    names = [one["name"] for one in tasks(file)]
    states = []
    for at, one in enumerate(tasks(file)):
        tell(job, names, [*states, "RUNNING"])
        script = one["run"]
        for place, local in one["file_mounts"].items():
            if place.startswith("/xp/jobs"):
                spec = json.loads(Path(local).read_text()) | {"root": str(state / "volume")}
                (job / Path(place).name).write_text(json.dumps(spec))
                script = script.replace(place, str(job / Path(place).name))
            elif isinstance(local, str):
                script = script.replace(place, local)
        script = script.replace("~/xp-python/bin/python", sys.executable)
        environ = {
            **os.environ,
            **one.get("envs", {}),
            "SKYPILOT_TASK_ID": f"sky-managed-{job.name}-{at}",
        }
        code = subprocess.run(["bash", "-c", script], env=environ, check=False).returncode
        if stopped:
            states.append("CANCELLED")
        else:
            states.append("FAILED" if code else "SUCCEEDED")
        if states[-1] != "SUCCEEDED":
            states += ["CANCELLED"] * (len(names) - len(states))
            break
    tell(job, names, states)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
