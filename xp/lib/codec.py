"""Frozen dataclasses as JSON: written above the wall, read below it, each value of the type that its field declares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar

T = TypeVar("T")
IN_JOB: Final = {"in_job": True}
"""Context in which pydantic reads a job's files: values are resolved; no plugin is looked up and no file read."""


class JsonFile:
    """Base of the frozen dataclasses that are stored as a job's JSON files."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}
    SORTS_KEYS: ClassVar[bool] = False

    def to_json(self) -> str:
        """Text of the file."""
        kind: Any = type(self)
        value = _adapter(kind).dump_python(self, mode="json")
        return json.dumps(value, indent=2, sort_keys=self.SORTS_KEYS, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the text that `to_json` wrote; raises ValueError for any other text."""
        return decode(cls, text)


def decode(kind: type[T], text: str) -> T:
    """Reads a dataclass (or a list of them) from JSON, without converting values of another type.

    Raises:
        ValueError: the text is not JSON, or not of this type; the message names each field.
    """
    from pydantic import ValidationError

    try:
        value: T = _adapter(kind).validate_json(text, strict=True, context=IN_JOB)  # type: ignore[arg-type]
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, entry['loc'])) or kind.__name__}: {entry['msg']}"
            for entry in error.errors()[:3]
        )
        raise ValueError("; ".join(faults)) from None
    return value


def from_value(kind: type[T], value: Any) -> T:
    """Reads a dataclass from the result of `dataclasses.asdict`; raises ValueError as `decode` does."""
    return decode(kind, json.dumps(value))


@cache
def _adapter(kind: Any) -> Any:
    """The validator of a type. pydantic is imported here, since xp.execution.launchers.node runs without it."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
