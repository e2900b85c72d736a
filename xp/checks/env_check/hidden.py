"""The first exception in a grader's own code: a broad `except` turns it into a reward of 0, and nobody sees it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from xp.envs.base import EnvFault
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.graders import GraderHandler
from xp.envs.rpc_server import serve
from xp.errors import XpError
from xp.lib.code_files import find_module

TRACED: Final = "xp.checks.env_check.hidden"
_ENDS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions by which iterators end."""


def hidden_exception(
    rules: EnvConfig, environ: Mapping[str, str], row: Mapping[str, Any], answer: str
) -> str | None:
    """The first exception in the grader's file while it scores an answer, with its line.

    None means that there was none, or that it cannot be seen.
    """
    process = ChildProcess(TRACED, rules, environ)
    try:
        child = process.child()
        limits = rules.limits
        child.ask("open", 0, dict(row), limits.create_timeout_s, "the grader's beginning")
        text: str | None = child.ask("take", 0, answer, limits.call_timeout_s, "the grader")
    except (EnvFault, XpError):
        return None
    finally:
        process.close()
    return text


class TracedHandler(GraderHandler):
    """The conversations of a grader, whose `take` returns the first exception in place of the result."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        module = find_module((config.grader or "").partition(":")[0])
        self._file = module.origin if module is not None else None

    def take(self, conversation: int, text: str) -> str | None:  # type: ignore[override]
        seen: list[str] = []

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename != self._file:
                return None if event == "call" else trace
            if event == "exception" and not issubclass(argument[0], _ENDS):
                kind, value, _ = argument
                location = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                seen.append(f"{kind.__name__}: {value!s:.200} ({location})")
            return trace

        threading.settrace(trace)
        sys.settrace(trace)
        try:
            super().take(conversation, text)
        except Exception:  # It is not hidden, and the first one was seen before it.
            pass
        finally:
            sys.settrace(None)
            threading.settrace(None)
        return seen[0] if seen else None


if __name__ == "__main__":
    serve(TracedHandler)
