"""Rows of the start page: every run and evaluation below an outputs root, read again when its files change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from xp.episode.evaluation import RECORD
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.execution.health import EpisodeCount
from xp.execution.leaderboard import MAX_SHOWN, RunEntry, differing, entry_of, is_match, text
from xp.execution.named import EVALUATIONS, RUNS, known_names
from xp.execution.notes import FILE as NOTES
from xp.execution.notes import listed_notes
from xp.execution.progress import REWARD, RunProgress, averaged, progress_of
from xp.execution.record import FILE, RunRecord, RunStatus, minutes_between, read_record
from xp.execution.sweep import SweepRecord, read_sweeps
from xp.lib.reading import is_finite, json_of
from xp.lib.text import shortened
from xp.results.evaluation.records import REQUEST, listed
from xp.results.evaluation.statistics import interval_of
from xp.results.evaluation.verdict import RunVerdict, diagnose
from xp.results.report.web import as_dict, page_name

MAX_POINTS: Final = 32
"""Largest number of points of a run's curve; more steps are averaged."""


@dataclass
class _Entry:
    stamp: tuple[int, ...]
    spec: Any
    run: RunEntry
    record: RunRecord | None
    """The run's record; None for an evaluation or an unreadable run."""
    data: dict[str, Any]
    """The run as the page shows it; all texts are escaped."""
    version: int = 0
    is_judged: bool = True
    """True if its verdict is known."""


class Listing:
    """Runs and evaluations below an outputs root.

    Args:
        outputs: the outputs root.
    """

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs
        self._entries: dict[str, _Entry] = {}
        self._version = 0
        self._lock = Lock()

    def data(self, seconds: float, since: int = 0, words: Sequence[str] = ()) -> dict[str, Any]:
        """The rows that changed after a version, and the names of all rows that match, newest first.

        Args:
            seconds: time for reading. The newest rows are read first, then the verdicts are made; `left` is the number
                of those that a later call reads.
            since: version of the caller's rows. 0 means that it has none.
            words: conditions, as of `is_match`.
        """
        with self._lock:
            directories = known_names(self._outputs, (RUNS, EVALUATIONS))
            left = self._refresh(directories, seconds)
            entries = sorted(
                self._entries.items(),
                key=lambda item: (item[1].data["started"], item[0]),
                reverse=True,
            )
            return {
                "version": self._version,
                "left": left,
                "total": len(directories),
                "names": [
                    name
                    for name, entry in entries
                    if is_match(entry.run, entry.spec, words, entry.data["note"])
                ],
                "rows": [entry.data for _, entry in entries if entry.version > since],
                "sweeps": [self._sweep(sweep) for sweep in read_sweeps(self._outputs)],
            }

    def _sweep(self, sweep: SweepRecord) -> dict[str, Any]:
        words = [word for word in sweep.words if not word.startswith("outputs=")]
        return {
            "name": page_name(sweep.name),
            "words": page_name(" ".join(words)),
            "runs": list(sweep.runs),
            "points": self._points(sweep.runs),
        }

    def _points(self, runs: Sequence[str]) -> dict[str, str]:
        """Run of a sweep -> its values of the keys in which the runs differ, the seed included."""
        known = {
            name: self._entries[name]
            for name in runs
            if name in self._entries and self._entries[name].record
        }
        points: dict[str, str] = {}
        has_seeds = len({entry.run.seed for entry in known.values()}) > 1
        for (name, entry), values in zip(
            known.items(), differing([entry.spec for entry in known.values()]), strict=True
        ):
            pairs = [
                f"{key.rpartition('.')[2]} {shortened(text(value), MAX_SHOWN)}"
                for key, value in values.items()
            ]
            if has_seeds:
                pairs.append(f"seed {entry.run.seed}")
            points[name] = page_name(", ".join(pairs))
        return points

    def _refresh(self, directories: Mapping[str, Path], seconds: float) -> int:
        """Reads what changed; returns the number of rows that are not read, or have no verdict yet."""
        self._entries = {
            name: entry for name, entry in self._entries.items() if name in directories
        }
        stamps = {name: _stamp(directory) for name, directory in directories.items()}
        newest = sorted(directories, key=lambda name: stamps[name], reverse=True)
        unread = [
            name
            for name in newest
            if name not in self._entries or self._entries[name].stamp != stamps[name]
        ]
        running = [
            name
            for name in newest
            if name not in unread and self._entries[name].data["status"] == "running"
        ]
        end = monotonic() + seconds
        while (unread or running) and monotonic() < end:
            name = unread.pop(0) if unread else running.pop(0)
            self._keep(name, _read(directories[name], stamps[name]))
        unjudged = [
            name for name in newest if name in self._entries and not self._entries[name].is_judged
        ]
        while unjudged and not unread and monotonic() < end:
            name = unjudged.pop(0)
            self._keep(name, _judged(directories[name], self._entries[name]))
        return len(unread) + len(unjudged)

    def _keep(self, name: str, entry: _Entry) -> None:
        known = self._entries.get(name)
        if known is None or known.data != entry.data:
            self._version += 1
            entry.version = self._version
        else:
            entry.version = known.version
        self._entries[name] = entry


def _stamp(directory: Path) -> tuple[int, ...]:
    """Times and sizes of the files that change with a run's record, an evaluation's result, or notes."""
    is_run = directory.parent.name == RUNS
    numbers: list[int] = []
    for name in (FILE if is_run else RECORD, NOTES):
        try:
            stat = (directory / name).stat()
            numbers += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            numbers += [0, 0]
    return tuple(numbers)


def _read(directory: Path, stamp: tuple[int, ...]) -> _Entry:
    try:
        if (directory / REQUEST).is_file():
            return _of_evaluation(directory, stamp)
        return _of_run(directory, stamp)
    except (XpError, KeyError, TypeError, ValueError) as error:
        run = RunEntry(directory.name, note=str(error))
        return _Entry(stamp, {}, run, None, _data(directory, run, RunVerdict.BROKEN))


def _of_run(directory: Path, stamp: tuple[int, ...]) -> _Entry:
    record = read_record(directory)
    spec, run = entry_of(directory, record)
    lines = read_metrics(directory / "metrics.jsonl", "train")
    last = record.attempts[-1]
    running = run.status == RunStatus.RUNNING
    seconds = 60 * (run.minutes or 0.0)
    if running:
        seconds += 60 * minutes_between(last.started, None)
    hardware = as_dict(spec.get("hardware"))
    data = _data(directory, run, None) | {
        "before": None if run.before is None else [run.before, None, None],
        "after": None if run.after is None else [run.after, None, None],
        "curve": _curve(line.get(REWARD) for line in lines),
        "progress": _progress_text(progress_of(directory, record)) if running else "",
        "seconds": round(seconds),
        "started": record.attempts[0].started,
        "machine": page_name(hardware.get("name", "")),
        "host": page_name(last.host or ""),
    }
    return _Entry(stamp, spec, run, record, data, is_judged=running)


def _progress_text(progress: RunProgress | None) -> str:
    """Step, number of steps, and time left, of a run that goes on."""
    if progress is None:
        return ""
    left = progress.seconds_left
    if not left:
        return progress.text
    if left >= 90:
        return f"{progress.text}, {left / 60:.0f} min left"
    return f"{progress.text}, {left:.0f} s left"


def _judged(directory: Path, entry: _Entry) -> _Entry:
    """The entry with verdict and intervals. Trajectories, which may be large, are read only if they may change the
    verdict."""
    if entry.record is None:
        return replace(entry, is_judged=True)
    changes: dict[str, Any] = {}
    try:
        diagnosis = diagnose(directory, entry.record, EpisodeCount())
        if diagnosis.verdict is RunVerdict.FLAT:
            diagnosis = diagnose(directory, entry.record)
        reason = diagnosis.reason
        if entry.record.status is RunStatus.RUNNING:  # it was killed
            reason = f"the run is {entry.run.status}"
        changes = {"verdict": diagnosis.verdict.value, "sentence": page_name(reason)}
    except XpError as error:
        changes = {"verdict": RunVerdict.INCOMPLETE.value, "sentence": page_name(error)}
    for name, result in (("before", entry.run.untrained), ("after", entry.run.result)):
        if result is not None:
            changes[name] = [result.reward_mean, *interval_of(result)]
    return replace(entry, data=entry.data | changes, is_judged=True)


def _of_evaluation(directory: Path, stamp: tuple[int, ...]) -> _Entry:
    request = as_dict(json_of(directory / REQUEST, ExitCode.RUN_DIR, below=directory))
    evaluation = listed(directory)
    status = "unreadable" if evaluation.fault else "unfinished"
    reward = None
    began = ended = None
    if evaluation.record is not None:
        status = evaluation.record.status
        reward = evaluation.record.summary.reward
        began = evaluation.record.content.get("started")
        ended = evaluation.record.content.get("ended")
    run = RunEntry(
        directory.name,
        env=str(request["env"]),
        model=str(as_dict(request.get("model")).get("name")),
        status=status,
        note=evaluation.fault,
        after=None if reward is None else reward.value,
        tags=" ".join(listed_notes(directory).tags),
    )
    data = _data(directory, run, None) | {
        "after": None if reward is None else [reward.value, reward.low, reward.high],
        "of": page_name(request.get("run") or ""),
    }
    if isinstance(began, float) and isinstance(ended, float):
        started = datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds")
        data |= {"seconds": round(ended - began), "started": started}
    return _Entry(stamp, request, run, None, data)


def _data(directory: Path, run: RunEntry, verdict: str | None) -> dict[str, Any]:
    """Fields of every run."""
    notes = listed_notes(directory)
    is_run = directory.parent.name == RUNS
    title = ["" if is_run else "evaluation", run.env, run.model, run.algorithm, run.backend]
    if run.seed is not None:
        title.append(f"seed {run.seed}")
    return {
        "name": directory.name,
        "kind": "run" if is_run else "evaluation",
        "status": page_name(run.status),
        "verdict": verdict,
        "sentence": "",
        "title": page_name(" · ".join(filter(None, title))),
        "tags": [page_name(tag) for tag in notes.tags],
        "note": page_name(notes.note),
        "remark": page_name(run.note),
        "started": "",
        "machine": "",
    }


def _curve(values: Iterable[Any]) -> list[float]:
    """The finite values, at most `MAX_POINTS`: more are averaged over equal parts."""
    known = [float(value) for value in values if is_finite(value)]
    return [float(f"{value:.4g}") for value in averaged(known, MAX_POINTS)]
