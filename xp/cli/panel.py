"""The live panel of a run on a terminal: its stages, steps, curves, time left, and the last lines of its output."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from xp.cli.display import live_console
from xp.cli.progress import RunProgress, clock, curves, progress_of
from xp.cli.sparkline import bar
from xp.errors import XpError
from xp.launchers.base import Echo
from xp.launchers.node.log import plain, write_to_screen
from xp.runs.record import FILE, RunRecord, RunStatus, read_record

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
        yield panel.echo
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
        self._seen: tuple[int, ...] | None = None
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
        """Removes the output's lines from the last view, since the summary follows."""
        self._is_over = True

    def view(self) -> Any:
        """The panel for `rich`."""
        from rich.console import Group
        from rich.panel import Panel as Box
        from rich.text import Text

        known = self._now()
        parts = [] if known is None else [_stages(known[0]), *map(Text, _training(known[1]))]
        with self._lock:
            lines = [] if self._is_over else [*self._lines, plain(self._rest).strip()]
        body = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in lines if line]
        title = Text(f"{self._run.name}  {clock(monotonic() - self._began)}")
        return Box(Group(*parts, *body), title=title, title_align="left", border_style="dim")

    def _now(self) -> tuple[RunRecord, RunProgress | None] | None:
        """Record and progress, read again when their files change."""
        files = [self._run / FILE, self._run / "metrics.jsonl"]
        try:
            seen = tuple(value for file in files if file.is_file() for value in _stamp(file))
            if seen and seen != self._seen:
                record = read_record(self._run)
                self._known, self._seen = (record, progress_of(self._run, record)), seen
        except (OSError, XpError):
            return self._known  # the record is being written; it is read again in half a second
        return self._known


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def _stages(record: RunRecord) -> Any:
    from rich.text import Text

    line = Text()
    for stage in record.attempts[-1].stages if record.attempts else ():
        line.append(f"{stage.name} ", style=MARKS[stage.status])
        line.append("done  " if stage.status is RunStatus.CACHED else f"{stage.status.value}  ", style="dim")
    return line


def _training(found: RunProgress | None) -> list[str]:
    """Lines with the step, the completed share, the time left, and the curves."""
    if found is None:
        return []
    step = f"{found.step}/{found.num_steps}" if found.num_steps else str(found.step)
    done = "" if found.share is None else f"  {bar(found.share)}"
    left = "" if not found.seconds_left else f"  {clock(found.seconds_left)} left"
    return [f"step {step}{done}{left}", *curves(found)]
