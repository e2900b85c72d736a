"""`python -m xp runs compare`: runs by their held-out reward, best first, as a table, CSV or Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.reading import json_of
from xp.runs.differences import differing, text
from xp.runs.held_out import held_out
from xp.runs.named import named_runs
from xp.runs.record import RunRecord, read_record


@dataclass(frozen=True)
class RunRow:
    """One run."""

    run: str
    env: str
    model: str
    algorithm: str
    backend: str
    seed: int | None
    """None: the run cannot be read."""
    steps: int | None
    """None: the run never came to know what its epochs are in steps."""
    before: float | None
    """Held-out reward of the untrained model; None: not evaluated."""
    after: float | None
    stderr: float | None
    """Standard error of `after`."""
    minutes: float | None
    """Minutes from the first attempt's start to the last one's end, without the pauses between attempts.

    None: the run cannot be read.
    """
    status: str
    note: str
    """Remark on `before` and `after`: their tasks are trained on as well; empty if they are not."""
    differs: Mapping[str, Any]
    """Keys in which not all of these runs on this environment have the same value -> this one's."""


PLAIN: Final = tuple(field.name for field in fields(RunRow) if field.name != "differs")
"""Columns that every table has."""


def leaderboard(outputs: Path, names: Sequence[str]) -> list[RunRow]:
    """Lines of the runs that the names mean (`named_runs`), or of all; best first, runs without a result last.

    Raises:
        XpError: RUN_DIR where a named run does not exist.
    """
    from xp.compose.recorded import tell_older

    groups: dict[str, list[_Readable]] = {}
    older: dict[str, list[str]] = {}
    broken: list[RunRow] = []
    for run in named_runs(outputs, names, takes_several=True):
        try:
            found = _read(run)
        except XpError as error:
            if names:
                raise
            broken.append(_broken(run, error))
            continue
        groups.setdefault(found.row.env, []).append(found)
        if found.filled:
            older[run.name] = found.filled
    tell_older(list(older), [field for filled in older.values() for field in filled])
    lines = []
    for group in groups.values():
        differs = differing([one.spec for one in group])
        lines += [replace(one.row, differs=own) for one, own in zip(group, differs, strict=True)]
    return sorted(lines, key=lambda line: (line.after is None, -(line.after or 0.0), line.run)) + broken


def _broken(run: Path, error: XpError) -> RunRow:
    """Row of a run that cannot be read, with the reason."""
    return RunRow(
        run=run.name,
        env="",
        model="",
        algorithm="",
        backend="",
        seed=None,
        steps=None,
        before=None,
        after=None,
        stderr=None,
        minutes=None,
        status="unreadable",
        note=str(error),
        differs={},
    )


def as_csv(lines: Sequence[RunRow]) -> str:
    """With a header; numbers as they were measured."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head(lines))
    writer.writerows([["" if value is None else value for value in _values(line, head(lines))] for line in lines])
    return text.getvalue()


def as_markdown(lines: Sequence[RunRow]) -> str:
    """A table for a document; numbers rounded."""
    names = head(lines)
    rows = [names, ["---"] * len(names), *(readable(line, names) for line in lines)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def readable(line: RunRow, names: Sequence[str]) -> list[str]:
    """The line's cells under these columns, rounded for people."""
    return [_readable(value) for value in _values(line, names)]


def _readable(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def head(lines: Sequence[RunRow]) -> list[str]:
    """Names of the columns: those of every table, and the keys that differ."""
    return [*PLAIN, *dict.fromkeys(key for line in lines for key in line.differs)]


def _values(line: RunRow, names: Sequence[str]) -> list[Any]:
    own = {**{name: getattr(line, name) for name in PLAIN}, **{key: text(one) for key, one in line.differs.items()}}
    return [own.get(name) for name in names]


def spec_of(directory: Path, attempt: int) -> Any:
    """The run's spec, from the plan of its last attempt: JSON is read ten times as fast as YAML."""
    return _spec_of(directory, attempt)[0]


def _spec_of(directory: Path, attempt: int) -> tuple[Any, list[str]]:
    """The spec, and its fields that were added to xp after the run."""
    from xp.compose.added_fields import fill
    from xp.compose.recorded import raw_spec

    plan = directory / f"attempt_{attempt}" / "plan.json"
    with suppress(XpError, LookupError, TypeError):  # an older run, or one whose plan is damaged
        spec = json_of(plan, ExitCode.RUN_DIR)["spec"]
        if "env" in spec:
            return spec, fill(spec)
    spec = raw_spec(directory / "spec.yaml")
    return spec, fill(spec)


@dataclass(frozen=True)
class _Readable:
    """One run as it was read."""

    spec: Any
    filled: list[str]
    """Fields that were added to xp after it."""
    row: RunRow
    """Its line, without what differs."""


def _read(directory: Path) -> _Readable:
    record = read_record(directory)
    try:
        spec, filled = _spec_of(directory, len(record.attempts))
        return _Readable(spec, filled, _row(directory, record, spec))
    except (AttributeError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise XpError(f"{directory} cannot be compared: {type(error).__name__} {error}", ExitCode.RUN_DIR) from error


def _row(directory: Path, record: RunRecord, spec: Any) -> RunRow:
    results = held_out(directory, record)
    before, after = results.get("before"), results.get("after")
    return RunRow(
        run=record.run_id,
        env="+".join(spec["env"]["members"]),
        model=spec["model"]["name"],
        algorithm=spec["algorithm"]["name"],
        backend=spec["backend"]["name"],
        seed=spec["seed"],
        steps=_steps(record) or spec["training"]["num_steps"],
        before=None if before is None else before.reward_mean,
        after=None if after is None else after.reward_mean,
        stderr=None if after is None else after.reward_stderr,
        minutes=_minutes(record),
        status=record.status.value,
        note=next((result.label for result in results.values() if result.label), ""),
        differs={},
    )


def _steps(record: RunRecord) -> int | None:
    """Rollout steps as the last training settled them."""
    settled = [attempt.training["num_steps"] for attempt in record.attempts if attempt.training]
    return settled[-1] if settled else None


def _minutes(record: RunRecord) -> float:
    spans = [
        datetime.fromisoformat(attempt.ended) - datetime.fromisoformat(attempt.started)
        for attempt in record.attempts
        if attempt.ended is not None
    ]
    return sum(span.total_seconds() for span in spans) / 60
