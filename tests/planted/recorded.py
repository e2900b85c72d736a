"""Recorded runs: of a run's directory what `runs diagnose` reads, small enough for the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

OUTPUTS = Path(__file__).parents[1] / "recorded/planted"
RECORDED = OUTPUTS / "runs"
MOST_EPISODES = 112
"""Trajectories of a run that are kept; the rules that read them ask for at most 100."""
READ = ("tools", "env_s", "elapsed_s")
"""Fields of a trajectory that the rules read, beside the names of its calls."""


def record(run: Path, name: str) -> None:
    """Keep a run as tests/recorded/planted/runs/NAME."""
    target = RECORDED / name
    shutil.rmtree(target, ignore_errors=True)
    for file in ("spec.yaml", "metrics.jsonl", "attempt_1/evaluate/evaluation.json"):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run / file, target / file)
    own = json.loads((run / "run.json").read_text().replace(run.name, name))
    own |= {"user": "recorded", "directory": f"/recorded/{name}"}
    for attempt in own["attempts"]:
        attempt.pop("host", None)
    (target / "run.json").write_text(json.dumps(own, indent=1))
    source = run / "attempt_1/train/trajectories"
    place = target / "attempt_1/train/trajectories"
    place.mkdir(parents=True)
    lines = [line for file in sorted(source.glob("*.jsonl")) for line in file.read_text().splitlines()]
    (place / "train.jsonl").write_text("".join(_part(line) for line in lines[:MOST_EPISODES]))
    if (source / "tools").is_dir():
        shutil.copytree(source / "tools", place / "tools")


def _part(line: str) -> str:
    whole = json.loads(line)
    part = {"tool_calls": [{"name": call["name"]} for call in whole["tool_calls"] if "name" in call]}
    return json.dumps(part | {key: whole[key] for key in READ}, separators=(",", ":")) + "\n"
