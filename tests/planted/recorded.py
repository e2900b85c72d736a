"""Recorded runs: of a run's directory what `runs diagnose` reads, small enough for the repository."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.planted.runs import RUNS
from xp.composition import compose
from xp.composition.points import to_yaml

RECORDED = Path(__file__).parents[1] / "recorded/planted"
EPISODES = "attempt_1/train/trajectories/train.jsonl"
MOST_EPISODES = 112
"""Trajectories of a run that are kept; the rules that read them ask for at most 100."""
READ = ("tools", "env_s", "elapsed_s")
"""Fields of a trajectory that the rules read, beside the names of its calls."""


def record(run: Path, name: str) -> None:
    """Keeps a run as tests/recorded/planted/NAME.json: a path of its directory -> the content, lines as a table."""
    trajectories = run / EPISODES
    lines = [
        line
        for file in sorted(trajectories.parent.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    own = json.loads((run / "run.json").read_text().replace(run.name, name))
    own |= {"user": "recorded", "directory": f"/recorded/{name}"}
    for attempt in own["attempts"]:
        attempt.pop("host", None)
    files = {
        "run.json": own,
        "metrics.jsonl": _table(
            [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        ),
        EPISODES: _table([_part(json.loads(line)) for line in lines[:MOST_EPISODES]]),
    }
    for file in (
        *run.glob("attempt_1/evaluate/*/eval.json"),
        *trajectories.parent.glob("tools/*.json"),
    ):
        files[str(file.relative_to(run))] = json.loads(file.read_text())
    texts = (
        f"{json.dumps(path)}: {json.dumps(_short(files[path]), separators=(',', ':'))}"
        for path in files
    )
    (RECORDED / f"{name}.json").write_text("{\n" + ",\n".join(texts) + "\n}\n")


def unpack(name: str, run: Path) -> None:
    """Makes the directory of a recorded run; its spec is what its words are today."""
    files = json.loads((RECORDED / f"{name}.json").read_text())
    for path, content in files.items():
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text(
            "".join(_lines(content)) if path.endswith(".jsonl") else json.dumps(content)
        )
    (run / "spec.yaml").write_text(to_yaml(compose(RUNS[name].words)))


def _part(whole: dict[str, Any]) -> dict[str, Any]:
    return {
        "tool_calls": [{"name": call["name"]} for call in whole["tool_calls"] if "name" in call]
    } | {key: whole[key] for key in READ}


def _table(lines: list[dict[str, Any]]) -> list[Any]:
    """Groups of lines that have the same keys: what is equal in all, the other keys, and their values in each line."""
    groups = []
    for keys, group in groupby(lines, key=list):
        own = list(group)
        equal = {key: own[0][key] for key in keys if all(line[key] == own[0][key] for line in own)}
        others = [key for key in keys if key not in equal]
        groups.append([equal, others, *([line[key] for key in others] for line in own)])
    return groups


def _lines(table: list[Any]) -> list[str]:
    return [
        json.dumps({**equal, **dict(zip(keys, row, strict=True))}) + "\n"
        for equal, keys, *rows in table
        for row in rows
    ]


def _short(value: Any) -> Any:
    """Numbers with five digits; a time, which has ten, to the second."""
    if isinstance(value, float):
        return round(value) if value > 1e8 else float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else value
