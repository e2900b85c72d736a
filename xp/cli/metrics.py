"""Explains the metrics of a run, from the table in the code."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from xp.episode.metric_table import METRICS, Metric, find
from xp.errors import XpError, nearest
from xp.spec import BackendName

ALL: Final = "metrics"
"""Argument of `explain` that lists all metrics."""


def is_metric(word: str) -> bool:
    """Returns whether an argument of `explain` names a metric; keys of the spec have no slash."""
    return "/" in word or word == ALL or bool(_of_last_part(word))


def metric_json(name: str) -> list[dict[str, Any]]:
    """A metric, or all metrics, as JSON objects; raises XpError for an unknown metric."""
    return [
        {
            "metric": row.name,
            "unit": row.unit,
            "means": row.meaning,
            "read": row.reading,
            "sources": {str(backend): source_of(row, backend) or None for backend in BackendName},
        }
        for row in (METRICS if name == ALL else [_found(name)[1]])
    ]


def _found(name: str) -> tuple[str, Metric]:
    """A metric and its full name; raises XpError for an unknown metric."""
    name = next(iter(_of_last_part(name)), name)
    row = find(name)
    if row is None:
        known = [row.name for row in METRICS]
        raise XpError(f"{name}: no such metric{nearest(name, known)}; python -m xp explain {ALL} lists them")
    return name, row


def explain_metric(name: str) -> Iterator[str]:
    """Yields the explanation's lines; raises XpError for an unknown metric."""
    if name == ALL:
        yield from (f"{row.name}  {row.meaning.split('. ')[0].rstrip('.')}." for row in METRICS)
        return
    name, row = _found(name)
    yield name if name == row.name else f"{name}  ({row.name})"
    yield f"  unit   {row.unit}"
    yield f"  means  {row.meaning}"
    yield f"  read   {row.reading}"
    for backend in BackendName:
        source = source_of(row, backend)
        yield f"  {backend:6} {source or 'does not give it'}"


def _of_last_part(word: str) -> list[str]:
    """Names of the metrics whose last part is this word: `clip_fraction` is `training/clip_fraction`."""
    return [row.name for row in METRICS if row.name.endswith(f"/{word}")]


def source_of(row: Metric, backend: BackendName) -> str:
    """Source of a metric on a backend; empty if its runs do not have the metric."""
    if row.is_of_episodes:
        return "xp, from the episodes"
    names = import_module(f"xp.backends.{backend}.worker.metric_names")
    native = [f"`{theirs}`" for theirs, ours in names.NATIVE.items() if ours == row.name]
    if row.name in names.MEASURED:
        remark = names.MEASURED[row.name]
        native.append(f"xp, {remark}" if remark else "xp")
    return ", ".join(native)
