"""Progress of a run from its metrics: lines and curves of text, and the live panel of a run on a terminal."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from xp.cli.display import live_console
from xp.composition import from_container
from xp.errors import XpError
from xp.execution.launchers.base import Echo
from xp.execution.launchers.node.log import last_lines
from xp.execution.leaderboard import spec_of
from xp.execution.progress import RunProgress, averaged, metrics_history, progress_of
from xp.execution.record import FILE, RunRecord, RunStatus, StageRecord, read_record
from xp.execution.run_directory import xp_command
from xp.lib.terminal import plain, shown, write_to_screen
from xp.lib.text import counted
from xp.planning.duration import duration
from xp.worker.diagnosis.rules import symptoms
from xp.worker.diagnosis.symptom import Severity

MARKS_OF_CURVES: Final = "▁▂▃▄▅▆▇█"
PLAIN_MARKS: Final = ".:-=+*%@"
"""Characters for terminals that cannot show block characters."""
WIDTH: Final = 32
CELLS: Final = 10
LINES: Final = 6
"""Lines of the stages' output that are shown."""
LOOKS_PER_S: Final = 2
MARKS: Final = {
    RunStatus.PENDING: "dim",
    RunStatus.RUNNING: "bold",
    RunStatus.SUCCEEDED: "green",
    RunStatus.CACHED: "green",
    RunStatus.FAILED: "red",
    RunStatus.INTERRUPTED: "yellow",
}
_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    return f"{minutes}:{rest:02}"


def curves(progress: RunProgress) -> list[str]:
    """Reward and held-out reward by step, or the loss by update, each in a line."""
    return [
        f"{name:<9}{sparkline([value for _, value in points])}  {points[0][1]:.3f} -> {points[-1][1]:.3f}"
        f"  ({counted(len(points), unit)})"
        for name, points, unit in progress.curves
    ]


def last_problem(run: Path, record: RunRecord) -> str | None:
    """Last line of a failed stage's log, or the most severe symptom. None means that neither exists."""
    for stage in record.attempts[-1].stages if record.attempts else ():
        if stage.status is RunStatus.FAILED:
            return f"problem  {stage.name}: exit {stage.exit_code}: {_last_words(run, stage)}"
    try:
        problems = symptoms(metrics_history(run, record))
    except XpError:
        return None
    alarms = [problem for problem in problems if problem.severity is not Severity.NOTE]
    if not alarms:
        return None
    worst = min(alarms, key=lambda alarm: (alarm.severity is not Severity.BROKEN, -alarm.step))
    command = xp_command(f"runs diagnose {run.name}", run.parent.parent)
    return shown(f"problem  {worst.rule}, step {worst.step}: {worst.found} ({command})")


def _last_words(run: Path, stage: StageRecord) -> str:
    """The error that ended a stage, by the last lines of its log; the last line with content if xp named none."""
    lines = last_lines(run.parent.parent / str(stage.log), run)
    words = [" ".join(line.split()) for line in lines if line.strip()]
    # A progress bar is drawn once more after the error.
    heads = [
        line
        for line in words
        if line.startswith(("xp: ", "Traceback")) and not line.startswith("xp: symptom")
    ]
    last = next(reversed(words), "no log")
    if heads and heads[-1].startswith("xp: "):
        last = heads[-1]
    return shown(last[:300])


def sparkline(values: Sequence[float]) -> str:
    """One character per value, scaled from the smallest to the largest; more than `WIDTH` values are averaged."""
    means = averaged(values, WIDTH)
    low = min(means, default=0.0)
    high = max(means, default=0.0)
    marks = _marks(MARKS_OF_CURVES, PLAIN_MARKS)
    steps = len(marks) - 1
    return "".join(
        marks[0 if high == low else round((mean - low) / (high - low) * steps)] for mean in means
    )


def bar(share: float) -> str:
    """Progress bar with its percentage."""
    marks = _marks("█░", "#.")
    done = round(min(1.0, max(0.0, share)) * CELLS)
    return f"{marks[0] * done}{marks[1] * (CELLS - done)} {share:.0%}"


def _marks(preferred: str, otherwise: str) -> str:
    try:
        preferred.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return otherwise
    return preferred


@contextmanager
def screen(run: Path, *, has_panel: bool) -> Iterator[Echo]:
    """Yields the receiver of the stages' output: a panel on a terminal, else the plain lines.

    Args:
        run: directory of the run, which may not exist yet.
        has_panel: whether the panel is shown on a terminal.
    """
    out = live_console()
    if not (has_panel and out.is_terminal and not out.is_dumb_terminal):
        yield write_to_screen
        return
    from rich.live import Live

    panel = Panel(run)
    # Nothing else prints meanwhile, and the replacement of standard output by `rich` has no encoding.
    with Live(
        get_renderable=panel.view,
        console=out,
        refresh_per_second=LOOKS_PER_S,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        try:
            yield panel.echo
        finally:
            panel.end()
            live.refresh()


class Panel:
    """Current state of a run. The supervisor calls `echo`, the screen's thread calls `view`."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._began = monotonic()
        self._lock = Lock()
        self._lines: deque[str] = deque(maxlen=LINES)
        self._rest = ""
        self._is_over = False
        self._seen: tuple[tuple[int, int], ...] | None = None
        self._known: tuple[RunRecord, RunProgress | None] | None = None

    def echo(self, text: str) -> None:
        """Adds output of a stage; only the last state of a progress bar is kept."""
        with self._lock:
            self._rest += text
            begin = 0
            for end in _LINE_END.finditer(self._rest):
                line = plain(self._rest[begin : end.start()]).rstrip()
                if line and end.group() != "\r":
                    self._lines.append(line)
                begin = end.end()
            self._rest = self._rest[begin:]

    def end(self) -> None:
        """Removes the output's lines from the last view, since the summary or the fault follows."""
        self._is_over = True

    def view(self) -> Any:
        """The panel for `rich`."""
        from rich.console import Group
        from rich.panel import Panel as Box
        from rich.text import Text

        known = self._now()
        parts = []
        if known is not None:
            parts = [_stages(known[0]), *map(Text, _training(known[1]))]
        lines = []
        with self._lock:
            if not self._is_over:
                lines = [*self._lines, plain(self._rest).strip()]
        body = [
            Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines if line
        ]
        title = Text(f"{self._run.name}  {clock(monotonic() - self._began)}")
        return Box(Group(*parts, *body), title=title, title_align="left", border_style="dim")

    @cached_property
    def _expected_step_s(self) -> float | None:
        """Seconds of a step by the plan, until the first one is measured. None means that the plan has none."""
        with suppress(XpError, LookupError, TypeError):
            spec = from_container(dict(spec_of(self._run, len(read_record(self._run).attempts))))
            expected = duration(spec, self._run.parent.parent)
            if expected is None:
                return None
            return (expected.low + expected.high) / 2
        return None

    def _now(self) -> tuple[RunRecord, RunProgress | None] | None:
        """Record and progress, read again when their files change."""
        files = [self._run / FILE, self._run / "metrics.jsonl"]
        try:
            stats = [file.stat() for file in files if file.is_file()]
            seen = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
            if seen and seen != self._seen:
                record = read_record(self._run)
                progress = progress_of(self._run, record)
                if progress is not None and progress.step_s is None and not progress.is_tuning:
                    progress = replace(progress, step_s=self._expected_step_s)
                self._known = (record, progress)
                self._seen = seen
        except (OSError, XpError):
            return self._known  # the record is being written; it is read again in half a second
        return self._known


def _stages(record: RunRecord) -> Any:
    from rich.text import Text

    line = Text()
    for stage in record.attempts[-1].stages if record.attempts else ():
        line.append(f"{stage.name} ", style=MARKS[stage.status])
        line.append(
            "done  " if stage.status is RunStatus.CACHED else f"{stage.status.value}  ", style="dim"
        )
    return line


def _training(progress: RunProgress | None) -> list[str]:
    """Lines with the step, the completed share, the time left, and the curves."""
    if progress is None:
        return []
    text = progress.text
    if progress.share is not None:
        text += f"  {bar(progress.share)}"
    if progress.seconds_left:
        about = "" if progress.step else "about "
        text += f"  {about}{clock(progress.seconds_left)} left"
    return [text, *curves(progress)]
