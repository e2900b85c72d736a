"""Watches calls of a served environment's own functions, in its server: where one raises, and where one is stuck."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, Final

TOOL: Final = "_env_tool"
"""Attribute of a function that the openreward and ors SDKs mark as a tool."""
MAX_FRAMES: Final = 3
MAX_CHARS: Final = 2000
LATE: Final = 0.8
"""Share of a call's time limit after which its place is reported."""


@dataclass(eq=False)
class _Call:
    """A call that has not returned."""

    name: str
    thread: int
    coroutine: Any = None
    """The coroutine of an async function. None means that the function is not async."""
    began: float = field(default_factory=time.monotonic)


class Raised(Exception):
    """An exception of a tool with its class in its text: the SDKs answer a call with the text alone."""


OF_SERVERS: Final = (
    "fastapi",
    "openenv",
    "openreward",
    "ors",
    "pydantic",
    "pydantic_core",
    "starlette",
)
"""Packages whose exceptions the SDKs answer otherwise than those of a tool."""


class WatchedCalls:
    """Reports each function's first exception of a type, and its first call that takes too long.

    Args:
        report: receives events, in any thread.
        limit_s: time limit of a call, in seconds.
    """

    def __init__(self, report: Callable[[Mapping[str, Any]], None], limit_s: float) -> None:
        self._report = report
        self._late_s = LATE * limit_s
        self._roots: set[Path] = set()
        self._calls: set[_Call] = set()
        self._reported: set[tuple[str, str]] = set()
        self.places: dict[str, str] = {}
        """Function -> file and line of its definition."""
        threading.Thread(target=self._look, name="late-calls", daemon=True).start()

    def watch(self, target: Any, base: type) -> None:
        """Wraps what the SDK calls of an environment's class, or of all loaded ones if `target` is an app.

        Args:
            base: the SDK's class of environments.
        """
        for cls in [target] if inspect.isclass(target) else list(_subclasses(base)):
            sdk = next(
                (parent for parent in cls.__mro__ if _package(parent) == _package(base)), None
            )
            if sdk is not None:
                for parent in cls.__mro__[: cls.__mro__.index(sdk)]:
                    self._watch_class(parent, sdk)

    def _watch_class(self, cls: type, sdk: type) -> None:
        for name, value in list(vars(cls).items()):
            function = getattr(value, "__func__", value)
            is_called = name == "__init__" or (hasattr(sdk, name) and not name.startswith("__"))
            if not inspect.isfunction(function) or not (is_called or hasattr(function, TOOL)):
                continue
            code = inspect.unwrap(function).__code__
            module = sys.modules.get(_package(cls))
            self._roots.add(Path(getattr(module, "__file__", None) or code.co_filename).parent)
            self.places.setdefault(name, f"{code.co_filename}:{code.co_firstlineno}")
            watched = self._watched(function, name)
            setattr(
                cls,
                name,
                type(value)(watched) if isinstance(value, (staticmethod, classmethod)) else watched,
            )

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        is_tool = hasattr(function, TOOL) or name.startswith("step")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def called(*args: Any, **options: Any) -> Any:
                coroutine = function(*args, **options)
                with self._running(_Call(name, threading.get_ident(), coroutine), is_tool):
                    return await coroutine
        else:

            @wraps(function)
            def called(*args: Any, **options: Any) -> Any:
                with self._running(_Call(name, threading.get_ident()), is_tool):
                    return function(*args, **options)

        return called

    @contextmanager
    def _running(self, call: _Call, is_tool: bool) -> Iterator[None]:
        self._calls.add(call)
        try:
            yield
        except (asyncio.CancelledError, NotImplementedError):
            raise
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            self._tell(
                call,
                "raised",
                type(error).__name__,
                frames,
                traceback.format_exception_only(error)[-1],
            )
            if is_tool and isinstance(error, Exception) and _package(type(error)) not in OF_SERVERS:
                raise Raised(f"{type(error).__name__}: {error}") from error
            raise
        finally:
            self._calls.discard(call)

    def _look(self) -> None:
        while True:
            time.sleep(min(1.0, self._late_s / 10))
            for call in list(self._calls):
                seconds = time.monotonic() - call.began
                if seconds > self._late_s:
                    frames = traceback.StackSummary.extract(
                        (frame, frame.f_lineno) for frame in _frames(call)
                    )
                    self._tell(call, "late", "", frames, f"no answer after {seconds:.1f} s")

    def _tell(
        self, call: _Call, event: str, kind: str, frames: traceback.StackSummary, end: str
    ) -> None:
        if (call.name, f"{event} {kind}") in self._reported:
            return
        self._reported.add((call.name, f"{event} {kind}"))
        users_frames = [frame for frame in frames if self._is_own(Path(frame.filename))][
            -MAX_FRAMES:
        ]
        text = "".join([*traceback.format_list(users_frames), end]).strip()[-MAX_CHARS:]
        self._report({"event": event, "call": call.name, "text": text})

    def _is_own(self, file: Path) -> bool:
        """Returns whether a file is the environment's, not a library's."""
        for root in self._roots:
            if file.is_relative_to(root):
                return "site-packages" not in file.relative_to(root).parts and file != Path(
                    __file__
                )
        return False


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def _subclasses(base: type) -> Iterator[type]:
    cls: type
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def _frames(call: _Call) -> list[FrameType]:
    """Frames of a call, the innermost last: of a waiting coroutine by what it awaits, else of its thread."""
    frames: list[FrameType] = []
    awaited = call.coroutine
    while getattr(awaited, "cr_frame", None) is not None:
        if awaited.cr_running:
            break
        frames.append(awaited.cr_frame)
        awaited = awaited.cr_await
    else:
        if frames:
            return frames
    frame = sys._current_frames().get(call.thread)
    return [caller for caller, _ in traceback.walk_stack(frame)][::-1]
