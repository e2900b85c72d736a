"""Converts INT, TERM and HUP to the orderly end of an evaluation, which stops its server and closes its sessions."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

from xp.errors import ExitCode, XpError
from xp.launchers.signals import DEBOUNCE_S, install, restore
from xp.lost_signals import repeated


class EvaluationStopped(KeyboardInterrupt):
    """A signal asks for the end of the evaluation."""


class OrderlyEnd:
    """Context manager: the first signal raises EvaluationStopped in the block; later ones do not disturb the end,
    except a second Ctrl-C. No effect in other threads than the main one.
    """

    def __init__(self) -> None:
        self._first: int | None = None
        self._received = 0.0
        self._previous: dict[int, Any] = {}
        self._repeating = ExitStack()

    def __enter__(self) -> OrderlyEnd:
        self._previous = install(self._handle)
        self._repeating.enter_context(repeated(EvaluationStopped, self._repeat))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Restores the handlers.

        Raises:
            XpError: TERMINATED, if the first signal was TERM or HUP and the block ends with another XpError or
                a KeyboardInterrupt.
        """
        restore(self._previous)
        self._repeating.close()
        if isinstance(error, XpError | KeyboardInterrupt) and self._first not in (None, signal.SIGINT):
            name = signal.Signals(self._first).name
            raise XpError(f"the evaluation was stopped by {name}", ExitCode.TERMINATED) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_first, since = self._first is None, time.monotonic() - self._received
        if is_first:
            self._first, self._received = number, time.monotonic()
        if is_first or (number == signal.SIGINT and since >= DEBOUNCE_S):
            raise EvaluationStopped(signal.Signals(number).name)

    def _repeat(self) -> None:
        number, self._first = self._first, None
        if number is not None:
            os.kill(os.getpid(), number)
