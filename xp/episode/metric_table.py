"""The table of all metrics (metrics.toml beside this file), and the entry of a metric's name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from xp.errors import nearest


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of metrics whose names differ in a part such as `<n>`."""

    name: str
    title: str
    """Short name for people; with the parts of the name, such as `<n>`."""
    unit: str
    meaning: str
    reading: str
    """Interpretation of the metric."""

    @property
    def is_of_episodes(self) -> bool:
        """Returns whether xp computes it from the episodes' outcomes, in the same way on every backend."""
        return self.name.partition("/")[0] in OF_EPISODES and self.name != LEFT_OUT


OF_EPISODES: Final = (
    "reward",
    "reward_fn",
    "group",
    "episodes",
    "environment",
    "tasks",
    "judges",
    "grader",
)
OF_TRAINERS: Final = ("training", "time")
"""First parts of the names of metrics that trainers measure."""
LEFT_OUT: Final = "episodes/groups_left_out"


TABLE: Final = Path(__file__).with_name("metrics.toml")
METRICS: Final = tuple(
    Metric(name, **entry) for name, entry in tomllib.loads(TABLE.read_text("utf-8")).items()
)
"""All metrics, in the order of the docs."""

PARTS: Final = {"<n>": r"(\d+)", "<threshold>": r"([-+.e\d]+)", "<name>": r"(.+)"}


def find(name: str) -> Metric | None:
    """The metric of a metric's name as it is in metrics.jsonl, or of a family's own (`reward/avg_pass_at_<n>`)."""
    return _parts(name)[0]


def title_of_metric(name: str) -> str:
    """Short name of a metric for people; a plugin's metric without an entry is its own name in words."""
    metric, prefix, name = _parts(name)
    if metric is None:
        return prefix + name.replace("_", " ").replace("/", ": ")
    title = metric.title
    match = _pattern(metric.name).fullmatch(name)
    if match is not None:
        for part, value in zip(re.findall("<.+?>", metric.name), match.groups(), strict=True):
            title = title.replace(part, value)
    return prefix + title


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for an unknown name below one of xp's first parts; other first parts belong to plugins."""
    for name in names:
        if (
            name.split("/", 1)[0] in (*OF_EPISODES, *OF_TRAINERS, "evaluation")
            and find(name) is None
        ):
            raise ValueError(
                f"the metric {name} is not in xp/episode/metrics.toml{nearest(name, [metric.name for metric in METRICS])}"
            )


def _parts(name: str) -> tuple[Metric | None, str, str]:
    """A metric, its evaluation and its member of the mixture in words, and its name without these."""
    prefix = ""
    if name.startswith("evaluation/"):
        when, _, name = name.removeprefix("evaluation/").partition("/")
        prefix = f"Held-out {when}: "
    metric = _of_run(name)
    env, _, rest = name.partition("/")
    of_env = _of_run(rest)
    if metric is None and of_env is not None:
        return of_env, f"{prefix}{env}: ", rest
    return metric, prefix, name


def _of_run(name: str) -> Metric | None:
    return next(
        (
            metric
            for metric in METRICS
            if name == metric.name or _pattern(metric.name).fullmatch(name)
        ),
        None,
    )


@cache
def _pattern(name: str) -> re.Pattern[str]:
    text = re.escape(name)
    for part, pattern in PARTS.items():
        text = text.replace(re.escape(part), pattern)
    return re.compile(text)
