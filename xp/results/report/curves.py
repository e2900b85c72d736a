"""Curves of a run: every metric of metrics.jsonl by step, and the reward's interval from the episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.episode.clusters import reward_limits
from xp.episode.metrics_file import metrics_lines
from xp.episode.trajectory import TRAIN
from xp.lib.nested import grouped
from xp.lib.reading import is_finite
from xp.results.evaluation.statistics import bounded, mean
from xp.results.report.episodes import EpisodeIndex
from xp.results.report.web import page_name

STAGES: Final = ("sft", "train", "evaluate_during", "evaluate")
MAX_TOOLS: Final = 7
"""Largest number of tools with a curve of their own."""
HEAD: Final = ("step", "time", "stage", "attempt", "schema_version", "format")
"""Keys of a line that are not metrics."""


def curves(run: Path) -> dict[str, dict[str, Any]]:
    """Stage -> its lines as columns: `step`, `time`, `attempt`, and `values` by metric; the last line of each step.

    Raises:
        XpError: as `metrics_lines` does.
    """
    lines: dict[str, dict[int, dict[str, Any]]] = {stage: {} for stage in STAGES}
    for line in metrics_lines(run / "metrics.jsonl"):
        if line["stage"] in lines:
            lines[line["stage"]][line["step"]] = line
    return {
        stage: _columns([by_step[step] for step in sorted(by_step)])
        for stage, by_step in lines.items()
        if by_step
    }


def reward_intervals(index: EpisodeIndex) -> dict[str, list[float | None]]:
    """Mean reward of each training step's episodes with its 95 % interval, clustered by task, from the last attempt."""
    last = index.last_attempt_of()
    steps = grouped(
        (entry.step, (entry.task, entry.reward))
        for entry in index.entries
        if entry.phase == TRAIN
        and entry.attempt == last[TRAIN, entry.step]
        and entry.reward is not None
    )
    limits = reward_limits(entry.reward for entry in index.entries)
    columns: dict[str, list[float | None]] = {"step": [], "value": [], "low": [], "high": []}
    for step in sorted(steps):
        estimate = bounded(mean(list(grouped(steps[step]).values())), limits)
        if estimate is not None:
            for name, value in {"step": step, **vars(estimate)}.items():
                if name in columns:
                    columns[name].append(None if value is None else round(value, 6))
    return columns


def tool_calls(index: EpisodeIndex) -> dict[str, Any]:
    """Calls of each tool for each episode, by step of the training; the rarest tools together are one."""
    last = index.last_attempt_of()
    counts = {
        step: index.calls[attempt, step]
        for (phase, step), attempt in last.items()
        if phase == TRAIN
    }
    episodes = Counter(
        entry.step
        for entry in index.entries
        if entry.phase == TRAIN and entry.attempt == last[TRAIN, entry.step]
    )
    total: Counter[str] = sum(counts.values(), Counter())
    names = [name for name, _ in total.most_common(MAX_TOOLS)]
    steps = sorted(counts)
    tools = {
        page_name(name): [round(counts[step][name] / episodes[step], 4) for step in steps]
        for name in names
    }
    if len(total) > MAX_TOOLS:
        tools[f"{len(total) - MAX_TOOLS} other tools"] = [
            round(sum(counts[step][name] for name in total.keys() - names) / episodes[step], 4)
            for step in steps
        ]
    return {"step": steps, "tools": tools}


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = sorted({name for line in lines for name in line if name not in HEAD})
    return {
        "step": [line["step"] for line in lines],
        "time": [_number(line.get("time")) for line in lines],
        "attempt": [_number(line.get("attempt")) for line in lines],
        "values": {page_name(name): [_number(line.get(name)) for line in lines] for name in names},
    }


def _number(value: Any) -> Any:
    if not is_finite(value):
        return None
    if isinstance(value, float) and abs(value) < 1e6:
        return float(f"{value:.7g}")
    return value
