"""Sends the lines of `metrics.jsonl` to trackers, in its own thread; a tracker's failure is only a warning."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from xp.execution.tracking.base import Opener, TrackedRun, Tracker

POLL_S = 0.5
CLOSE_TIMEOUT_S = 60.0
"""Seconds that trackers may take to flush at the end."""
ABOUT = frozenset({"step", "time", "attempt", "stage"})
"""Keys of a line that are not metrics."""
FINE_TUNING = "sft"
"""Stage whose steps are not rollout steps: its metrics have names of their own in a tracker."""


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.jsonl."""

    stage: str
    step: int
    time: float
    metrics: Mapping[str, float]


def parse_line(text: str) -> MetricsLine | None:
    """Reads one line; None if it is not a line of metrics."""
    try:
        value = json.loads(text)
        stage = str(value["stage"])
        prefix = f"{FINE_TUNING}/" if stage == FINE_TUNING else ""
        metrics = {
            name if name.startswith(prefix) else prefix + name: float(number)
            for name, number in value.items()
            if name not in ABOUT and isinstance(number, int | float)
        }
        return MetricsLine(stage, int(value["step"]), float(value["time"]), metrics)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


class Mirror:
    """Context manager: the trackers receive the file's lines while it is open, and all of them before it closes.

    Lines of earlier attempts are sent too. They wait for the first new line of their stage: a resumed training repeats
    the steps after its checkpoint.
    """

    def __init__(
        self,
        file: Path,
        run: TrackedRun,
        openers: Mapping[str, Opener],
        warn: Callable[[str], None],
        *,
        poll_s: float = POLL_S,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self._file = file
        self._run = run
        self._warn = warn
        self._poll_s = poll_s
        self._close_timeout_s = close_timeout_s
        self._waiting = dict(openers)
        """Trackers that are not closed yet; a tracker that fails is left out."""
        self._trackers: dict[str, Tracker] = {}
        self._offset = 0
        self._earlier = {(line.stage, line.step): line for line in self._new_lines()}
        """Lines of earlier attempts that are not sent yet, the last one of each step."""
        self._stop = threading.Event()
        self.is_success = True
        """False: the run failed."""
        # A daemon thread: a tracker that hangs on a broken network must not keep the process alive.
        self._thread = threading.Thread(target=self._follow, name="xp-tracking", daemon=True)

    def __enter__(self) -> Self:
        if self._waiting:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.is_success = self.is_success and kind is None
        self._stop.set()
        if not self._thread.ident:
            return
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            names = ", ".join(self._waiting)
            self._warn(f"tracking: {names} did not finish within {self._close_timeout_s:g} s\n")

    def _follow(self) -> None:
        for name, opener in list(self._waiting.items()):
            self._try(name, partial(self._open, name, opener))
        while True:
            is_last = self._stop.wait(self._poll_s)
            for line in self._new_lines():
                self._send_earlier(line)
                self._send(line)
            if is_last:
                break
        self._send_earlier()
        for name, tracker in list(self._trackers.items()):
            self._try(name, partial(tracker.close, is_success=self.is_success))
            self._waiting.pop(name, None)

    def _open(self, name: str, opener: Opener) -> None:
        self._trackers[name] = opener(self._run)

    def _send_earlier(self, first: MetricsLine | None = None) -> None:
        """Sends the lines of earlier attempts: of the stage of the first new line the steps before it. None means of
        all."""
        for key, line in list(self._earlier.items()):
            if first is not None and line.stage != first.stage:
                continue
            del self._earlier[key]
            if first is None or line.step < first.step:
                self._send(line, is_new=False)

    def _send(self, line: MetricsLine, *, is_new: bool = True) -> None:
        """Sends a line to each tracker; one of an earlier attempt only to those that do not have it."""
        for name, tracker in list(self._trackers.items()):
            if is_new or line.time > tracker.last_time:
                self._try(name, partial(tracker.log, line.step, line.time, line.metrics))

    def _new_lines(self) -> list[MetricsLine]:
        """Complete lines since the last call; a line that is still being written is left for the next call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = (parse_line(text) for text in whole.decode(errors="replace").splitlines())
        return [line for line in lines if line is not None]

    def _try(self, name: str, action: Callable[[], object]) -> None:
        """Calls a tracker; any exception ends this tracker only."""
        try:
            action()
        except Exception as error:
            self._trackers.pop(name, None)
            self._waiting.pop(name, None)
            self._warn(
                f"tracking: {name} failed and is left out from here on: {type(error).__name__}: {error}\n"
            )
