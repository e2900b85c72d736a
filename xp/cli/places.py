"""Paths of a run's files for people: its episodes' texts and its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from xp.cli.report import REPORT, write_page
from xp.runs.record import number_of
from xp.runs.run_directory import xp_command


def episodes_line(run: Path) -> str | None:
    """Directory of the last attempt's trajectories, with the command that shows one; None: there are none."""
    found = [place.parents[1] for place in run.glob("attempt_*/*/trajectories")]
    if not found:
        return None
    command = xp_command(f"runs episode {run.name} --worst", run.parent.parent)
    return f"episodes      {max(found, key=number_of)}/*/trajectories  ({command})"


def report_line(run: Path) -> str:
    """Path of the report, or the command that writes it."""
    if (run / REPORT).is_file():
        return f"report        {run / REPORT}"
    return f"report        not written yet: {xp_command(f'report {run.name}', run.parent.parent)}"


def written_report(run: Path, warn: Callable[[str], None]) -> Path | None:
    """Writes the run's report; returns None, with a warning, if that fails."""
    try:
        write_page([run], run / REPORT)
    except Exception as error:
        warn(f"no report: {type(error).__name__}: {error}")
        return None
    return run / REPORT


def places_of_failed(run: Path) -> list[str]:
    """Lines with the paths of a failed run; its report is written if any episode was played."""
    line = episodes_line(run)
    if line is None:
        return []
    written_report(run, lambda _: None)
    return [line, report_line(run)]
