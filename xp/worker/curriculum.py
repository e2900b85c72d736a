"""Selects training tasks again during training, by the pass rates of its own episodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xp.episode.metrics import Played
from xp.lib.atomic import append_line
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule

TRIED_AGAIN: Final = 10
"""Interval of prompts with a task outside the bounds, the one with the oldest measurement."""
FILE: Final = "curriculum.jsonl"
"""File beside metrics.jsonl: one line per rollout step with each task's numbers of passed and scored episodes."""


@dataclass(frozen=True)
class Refresh:
    """Rule for the training tasks of one environment."""

    every: int
    """Rollout steps of a window; the tasks are selected at the beginning of each window."""
    low: float
    high: float
    """Bounds of the pass rate, both included."""
    easy_first: bool
    """True orders a window's tasks from the highest rate to the lowest; the window has those measured longest ago."""
    rates: Mapping[str, float]
    """Index of a task in its split -> pass rate before training, from its profile."""


@dataclass(frozen=True)
class _Measured:
    """Pass rate of a task, and the window of its measurement; -1: from the profile."""

    rate: float
    window: int


class Curriculum:
    """The tasks of each rollout step, the same in every process that gets the same episodes.

    Args:
        order: tasks of all rollout steps; tasks of environments with a rule are replaced.
        rows: all tasks that may be trained on.
        rules: environment -> rule.
        prompts_per_step: tasks of a step.
        seed: seed of the windows' orders.
        shuffle: False: a window has the tasks that were measured longest ago, in the order of the task set.
        threshold: smallest reward that is a pass.
        file: file with the steps' measurements, for resumed runs.
        writes: whether this process writes the file.
    """

    def __init__(
        self,
        order: Sequence[TaskRow],
        rows: Sequence[TaskRow],
        rules: Mapping[str, Refresh],
        *,
        prompts_per_step: int,
        seed: int,
        shuffle: bool,
        threshold: float,
        file: Path,
        writes: bool,
    ) -> None:
        self._order, self._rules, self._size = order, rules, prompts_per_step
        assert all(row.purpose is Purpose.TRAIN for row in rows), "held-out tasks are not trained on"
        self._rows = {name: [row for row in rows if row.env == name] for name in rules}
        self._seed, self._shuffle, self._threshold = seed, shuffle, threshold
        self._file, self._writes = file, writes
        self._steps = _read(file)
        self._windows: dict[tuple[str, int], list[TaskRow]] = {}

    def tasks(self, step: int) -> list[TaskRow]:
        """The tasks of a rollout step, from 0; requires the episodes of earlier windows."""
        slots = list(self._order[step * self._size : (step + 1) * self._size])
        for name, rule in self._rules.items():
            window = step // rule.every
            chosen = self._window(name, window)
            first = window * rule.every * self._size
            before = sum(row.env == name for row in self._order[first : step * self._size])
            streams = iter(chosen[before:])
            slots = [next(streams) if row.env == name else row for row in slots]
        return slots

    def played(self, step: int, episodes: Sequence[Played]) -> None:
        """Adds the episodes of a rollout step, of all ranks together."""
        by_task: dict[str, list[int]] = {}
        for one in episodes:
            if one.env in self._rules and (reward := one.outcome.task_reward) is not None:
                counts = by_task.setdefault(one.task_id, [0, 0])
                counts[0] += reward >= self._threshold
                counts[1] += 1
        self._steps[step] = by_task
        if self._writes:
            append_line(self._file, json.dumps({"step": step, "tasks": by_task}))

    def num_within(self, step: int) -> dict[str, float]:
        """Metric of the number of tasks within the bounds in a step's window."""
        within = [self._within(rule, self._measured(name, step // rule.every)) for name, rule in self._rules.items()]
        return {"tasks/within_pass_rate": float(sum(map(len, within)))}

    def _window(self, name: str, window: int) -> list[TaskRow]:
        if (name, window) not in self._windows:
            self._windows = {key: rows for key, rows in self._windows.items() if key[0] != name}
            self._windows[name, window] = list(self._chosen(name, window))
        return self._windows[name, window]

    def _chosen(self, name: str, window: int) -> Iterator[TaskRow]:
        """The tasks of a window, one per prompt."""
        rule = self._rules[name]
        first, last = (at * rule.every * self._size for at in (window, window + 1))
        number = sum(row.env == name for row in self._order[first:last])
        measured = self._measured(name, window)
        within = self._within(rule, measured)
        rows = [row for row in self._rows[name] if row.task_id in within]
        others = [row for row in self._rows[name] if row.task_id in measured and row.task_id not in within]
        others.sort(key=lambda row: measured[row.task_id].window)
        shuffle = self._shuffle and not rule.easy_first
        if not shuffle:
            # Else each window would begin with the same tasks, and one shorter than the set would hold no others.
            rows.sort(key=lambda row: measured[row.task_id].window)
        if rule.easy_first:
            rows = sorted(rows[:number], key=lambda row: -measured[row.task_id].rate)
        inside = iter(schedule(rows, number, seed=self._seed + window, shuffle=shuffle) if rows else ())
        outside = iter(schedule(others, number, seed=0, shuffle=False) if others else ())
        for position in range(1, number + 1):
            is_tried = bool(others) and (not rows or position % TRIED_AGAIN == 0)
            yield next(outside if is_tried else inside)

    def _within(self, rule: Refresh, measured: Mapping[str, _Measured]) -> set[str]:
        return {task for task, one in measured.items() if rule.low <= one.rate <= rule.high}

    def _measured(self, name: str, window: int) -> dict[str, _Measured]:
        """Latest pass rate of each task at the beginning of a window."""
        rule = self._rules[name]
        measured = {
            row.task_id: _Measured(rule.rates[str(row.index)], -1)
            for row in self._rows[name]
            if str(row.index) in rule.rates
        }
        for number in range(window):
            sums: dict[str, list[int]] = {}
            for step in range(number * rule.every, (number + 1) * rule.every):
                for task, (passed, scored) in self._steps.get(step, {}).items():
                    counts = sums.setdefault(task, [0, 0])
                    counts[0], counts[1] = counts[0] + passed, counts[1] + scored
            measured |= {
                task: _Measured(passed / scored, number) for task, (passed, scored) in sums.items() if task in measured
            }
        return measured


def _read(file: Path) -> dict[int, dict[str, list[int]]]:
    """Step -> task -> passed and scored episodes; the last line of a repeated step counts."""
    if not file.is_file():
        return {}
    steps: dict[int, dict[str, list[int]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # The process was killed while it wrote the line; the step is played again.
        steps[value["step"]] = value["tasks"]
    return steps
