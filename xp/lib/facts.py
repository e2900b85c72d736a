"""Facts of the disk that a plan reads once and hands to all its parts, so that no two of them see different files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_FACTS: ContextVar[dict[Any, Any] | None] = ContextVar("FACTS", default=None)
"""Function and arguments -> fact. None means that nothing is kept."""


@contextmanager
def one_reading() -> Iterator[None]:
    """Within it, each `fact` is read once; a reading within another one is a part of it."""
    if _FACTS.get() is not None:
        yield
        return
    before = _FACTS.set({})
    try:
        yield
    finally:
        _FACTS.reset(before)


def fact(read: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function that reads the disk, and whose result nobody changes; outside a reading, it reads again."""

    @wraps(read)
    def known(*args: P.args, **kwargs: P.kwargs) -> T:
        facts = _FACTS.get()
        if facts is None:
            return read(*args, **kwargs)
        key = (read, *map(_key, args), *((name, _key(value)) for name, value in kwargs.items()))
        if key not in facts:
            facts[key] = read(*args, **kwargs)
        return cast(T, facts[key])

    return known


def file_fact(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """Decorates a function that reads a file, and whose result holds as long as the file's size and time stay."""
    facts: dict[tuple[Path, int, int], T] = {}

    @wraps(read)
    def known(file: Path) -> T:
        state = file.stat()
        key = (file, state.st_size, state.st_mtime_ns)
        if key not in facts:
            facts[key] = read(file)
        return facts[key]

    return known


def _key(value: Any) -> Any:
    """The value, or its JSON for a part of a spec, which cannot be hashed."""
    if hasattr(value, "model_dump_json"):
        return value.model_dump_json()
    return value
