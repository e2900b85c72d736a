"""Walk over the schema: each field by its key path, and the values of fields that older runs were recorded without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

from pydantic.fields import FieldInfo

from xp.spec.section import Section

ANY: Final = "*"
"""Stands in a key path for each key of a mapping and each place of a list."""


@dataclass(frozen=True)
class Former:
    """Mark of a field that the spec gained: `Annotated[Count | None, Former(None)]`."""

    value: Any
    """Value that a run recorded before the field counts as having, as JSON: with it xp does what it did then. Or a
    function that makes it of the recorded spec, whose sections are not validated."""


def schema_fields(section: type[Section], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Each field of a section and of the sections below it, with its key path; a section comes before its own fields.

    Args:
        section: where to begin.
        path: of the section, with a dot at its end; empty: the whole spec.
    """
    for name, field in section.model_fields.items():
        yield f"{path}{name}", field
        for between, below in _sections_in(field.annotation):
            yield from schema_fields(below, f"{path}{name}.{between}")


def former_values(section: type[Section]) -> dict[str, Any]:
    """Key path -> former value, of each field below a section that has one."""
    return {
        path: mark.value
        for path, field in schema_fields(section)
        for mark in field.metadata
        if isinstance(mark, Former)
    }


def _sections_in(annotation: Any) -> Iterator[tuple[str, type[Section]]]:
    """Sections of a type, whatever union or mapping holds them, each with the part of the key path that leads there."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield "", annotation
        return
    between = f"{ANY}." if get_origin(annotation) in (dict, Mapping, tuple) else ""
    for argument in get_args(annotation):
        for path, section in _sections_in(argument):
            yield f"{between}{path}", section
