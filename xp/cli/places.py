"""Places of what a run leaves behind for people: the texts of its episodes, and its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from xp.cli.report import REPORT, write_page


def episodes_line(run: Path) -> str | None:
    """Directory of the newest attempt's trajectories, with the command that shows one; None: there is none."""
    found = sorted(run.glob("attempt_*/*/trajectories"), key=lambda place: place.stat().st_mtime)
    if not found:
        return None
    attempt = found[-1].parent.parent.name
    return f"episodes      {run / attempt}/*/trajectories  (python -m xp runs episode {run.name} --worst)"


def report_line(run: Path) -> str:
    """The report that was written, or the command that writes it."""
    if (run / REPORT).is_file():
        return f"report        {run / REPORT}"
    return f"report        not written yet: python -m xp report {run.name}"


def written_report(run: Path, warn: Callable[[str], None]) -> Path | None:
    """Write the run's report; None, with a warning, where that fails: the run's record is whole without it."""
    try:
        write_page([run], run / REPORT)
    except Exception as error:
        warn(f"no report: {type(error).__name__}: {error}")
        return None
    return run / REPORT


def places_of_failed(run: Path) -> list[str]:
    """The same of a run that failed; its report is written if any episode was played."""
    line = episodes_line(run)
    if line is None:
        return []
    written_report(run, lambda _: None)
    return [line, report_line(run)]
