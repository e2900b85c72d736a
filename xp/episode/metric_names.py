"""Finds the row of a metric's name, also for families, evaluations and environments of a mixture."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from xp.episode.metric import OF_EPISODES, OF_TRAINERS, Metric
from xp.episode.metric_table import METRICS
from xp.errors import nearest

PARTS: Final = {"<n>": r"\d+", "<threshold>": r"[-+.e\d]+", "<name>": r".+"}


def find(name: str) -> Metric | None:
    """The row of a metric's name as it is in metrics.jsonl, or of a family's own (`reward/avg_pass_at_<n>`)."""
    if name.startswith("evaluation/"):
        name = name.split("/", 2)[-1]
    own = _of_run(name)
    return own if own is not None or "/" not in name else _of_run(name.split("/", 1)[1])


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for an unknown name below one of xp's first parts; other first parts belong to plugins."""
    for name in names:
        if name.split("/", 1)[0] in (*OF_EPISODES, *OF_TRAINERS, "evaluation") and find(name) is None:
            raise ValueError(
                f"the metric {name} is not in xp/episode/metric_table.py{nearest(name, [row.name for row in METRICS])}"
            )


def _of_run(name: str) -> Metric | None:
    return next((row for row in METRICS if name == row.name or _pattern(row.name).fullmatch(name)), None)


@cache
def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name)
    for part, pattern in PARTS.items():
        text = text.replace(re.escape(part), pattern)
    return re.compile(text)
