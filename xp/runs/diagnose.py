"""A run's directory -> its history for the rules of xp.diagnosis: metrics, facts of its spec, and use of tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from xp.diagnosis.history import Facts, History, ToolUse
from xp.episode.metrics_file import read_metrics
from xp.episode.trajectory import TOOLS
from xp.errors import ExitCode, XpError
from xp.runs.leaderboard import spec_of
from xp.runs.record import RunRecord
from xp.security.names import is_name


def history_of(run: Path, record: RunRecord) -> History:
    """Reads all that is on record of a run's training; raises XpError(RUN_DIR) for a directory that is no run."""
    return replace(metrics_history(run, record), tools=_tool_use(run))


def metrics_history(run: Path, record: RunRecord) -> History:
    """The same without the trajectories, which may be large."""
    file = run / "metrics.jsonl"
    lines, during = (read_metrics(file, stage) if file.is_file() else [] for stage in ("train", "evaluate_during"))
    try:
        return History(lines, Facts.of_spec(spec_of(run, len(record.attempts))), during)
    except (KeyError, TypeError, ValueError) as error:
        raise XpError(f"{run} cannot be read: {type(error).__name__} {error}", ExitCode.RUN_DIR) from error


def _tool_use(run: Path) -> ToolUse | None:
    """Counts calls over all trajectories; None: there is none."""
    calls: Counter[str] = Counter()
    offered: set[tuple[Path, str]] = set()
    num_episodes, waited, elapsed = 0, 0.0, 0.0
    for file in sorted(run.glob("attempt_*/train/trajectories/*.jsonl")):
        for record in _records(file):
            num_episodes += 1
            calls.update(str(call["name"]) for call in record["tool_calls"] if "name" in call)
            offered.add((file.parent, str(record.get(TOOLS, ""))))
            waited += sum(record["env_s"])
            elapsed += record["elapsed_s"]
    if not num_episodes:
        return None
    names = frozenset(name for place, digest in offered for name in _tools(place, digest))
    return ToolUse(num_episodes, names, calls, waited / elapsed if elapsed > 0 else None)


def _records(file: Path) -> Iterator[Mapping[str, Any]]:
    """One at a time: a long run's trajectories are larger than memory. A torn line is passed over."""
    with file.open("rb") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and {"tool_calls", "env_s", "elapsed_s"} <= set(record):
                yield record


def _tools(place: Path, digest: str) -> list[str]:
    """Names of the tools that a trajectory's digest stands for."""
    file = place / TOOLS / f"{digest}.json"
    if not is_name(digest) or not file.is_file():
        return []
    try:
        return [str(one["function"]["name"]) for one in json.loads(file.read_bytes())]
    except (ValueError, LookupError, TypeError, RecursionError):
        return []
