"""Rows: what a trainer receives of each field of the spec. Fields without a row are implemented by xp (`BY_XP`).

A backend's rows give the native keys of a job, the trainer's refusals, the parity table and the names in hints.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import Any, get_args

from xp.lib.nested import upwards
from xp.planning.by_xp import BY_XP
from xp.spec import RunSpec, Section

Native = Mapping[str, Any]
"""Native key -> value."""
Replaced = Mapping[str, tuple[Any, str]]
"""Rendered native key that the user's own replaces -> the user's value, and what no longer holds."""
Text = str | Callable[[RunSpec], str | None]
"""A constant, or a function of the spec; None is no text."""
Condition = Callable[[RunSpec], object]
LEFT_OUT = "nothing: the flag is left out"


@dataclass(frozen=True)
class Row:
    """Support of one field by one trainer."""

    field: str
    """Key path; fields below it without their own row share this one. Empty: the row is the same for every spec."""
    render: str | Native | Callable[[RunSpec], Native] = dataclasses.field(default_factory=dict)
    """Native keys and their values; a single name is the key that gets the field's value unchanged, if the section of
    the field is not null."""
    implemented_by: Text = ""
    """The part of xp or of the trainer that implements the field, alone or in addition to the native keys."""
    note: Text = ""
    """One sentence about the difference; with a note, the support is emulated."""
    note_if: Condition | None = None
    """Returns whether there is that difference. None means that there is always one, or that `note` tells."""
    refuse: Text | None = None
    """Why this value cannot run and how to fix it; None if it can. A text without `refuse_if` means that the trainer
    does not have the field: only its neutral value can run, which is null where the field can be null, else false or
    1."""
    refuse_if: Condition | None = None
    """Returns whether this value cannot run."""

    def keys(self, spec: RunSpec) -> Native:
        """The native keys of a spec."""
        if isinstance(self.render, str):
            section, name = self._place(spec)
            if section is None:
                return {}
            return {self.render: getattr(section, name)}
        if callable(self.render):
            return self.render(spec)
        return self.render

    def refusal(self, spec: RunSpec) -> str | None:
        """Returns why the spec's value cannot run; None if it can."""
        if self.is_missing:
            can_run = self._is_off(spec)
        else:
            can_run = self.refuse_if is not None and not self.refuse_if(spec)
        if can_run or self.refuse is None:
            return None
        return _text(self.refuse, spec)

    @property
    def is_missing(self) -> bool:
        """True if the trainer does not have the field."""
        return isinstance(self.refuse, str) and self.refuse_if is None

    def _place(self, spec: RunSpec) -> tuple[Any, str]:
        """The section of the field, and the field's name in it."""
        above, _, name = self.field.rpartition(".")
        return attrgetter(above)(spec) if above else spec, name

    def _is_off(self, spec: RunSpec) -> bool:
        section, name = self._place(spec)
        value = getattr(section, name)
        if NoneType in get_args(type(section).model_fields[name].annotation):
            return value is None
        if isinstance(value, bool):
            return value is False
        return bool(value == 1)


@dataclass(frozen=True)
class Pin:
    """A native key with one value for every run."""

    value: Any
    reason: str
    """The reason, which follows a colon."""


def _text(text: Text, spec: RunSpec) -> str | None:
    return text(spec) if callable(text) else text


@dataclass(frozen=True)
class Refusal:
    """A reason why a spec cannot run on a backend."""

    field: str
    """Key path as in the spec."""
    reason: str
    """One sentence with a remedy."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def render(rows: Sequence[Row], spec: RunSpec) -> dict[str, Any]:
    """All native keys, in the order of the rows."""
    return {key: value for row in rows for key, value in row.keys(spec).items()}


def owners(rows: Sequence[Row], spec: RunSpec) -> dict[str, str]:
    """Native key -> its field; empty if the key is the same for every run."""
    return {key: row.field for row in rows for key in row.keys(spec)}


def refusals(rows: Sequence[Row], spec: RunSpec) -> list[Refusal]:
    """Refusals of the rows, in the order of the rows."""
    return [Refusal(row.field, reason) for row in rows if (reason := row.refusal(spec)) is not None]


class Support(StrEnum):
    """Degree to which a backend supports a field of the spec."""

    EXACT = "exact"
    EMULATED = "emulated"
    """Supported by other means, or with a difference that `note` describes."""
    UNSUPPORTED = "unsupported"
    """Refused if it is set."""


@dataclass(frozen=True)
class FieldSupport:
    """Support of one field of a spec by a backend: a cell of the parity table."""

    support: Support
    receives: str
    """The trainer's native keys (`learning_rate=1e-06`), or the part of xp that implements the field."""
    note: str = ""
    """One sentence about a difference, if the support is not exact."""


MEANT = (
    *("seed", "model", "algorithm", "training", "evaluation"),
    *("backend.attention", "backend.parallel", "backend.engine"),
)
"""Sections for whose leaf fields each backend must have a FieldSupport; xp itself implements the others."""


def meant_fields(spec: RunSpec) -> Iterator[str]:
    """Key paths of all leaf fields of the sections `MEANT`, and of `sft` with a fine-tuning; a mapping with the user's
    own keys is one leaf."""
    for section in (*MEANT, *(["sft"] if spec.sft.data is not None else [])):
        yield from _leaves(section, attrgetter(section)(spec))


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _leaves(f"{path}.{name}", getattr(value, name))
    else:
        yield path


def implemented_by_xp(path: str) -> str:
    """The part of xp that implements a field on backends without a row for it."""
    path = re.sub(r"^env\.members\.[^.]+", "env", path)
    return f"by xp, in {next(BY_XP[above] for above in upwards(path) if above in BY_XP)}"


def meanings(
    rows: Sequence[Row],
    spec: RunSpec,
    refused: Sequence[Refusal],
    written: Callable[[Native], str],
    replaced: Replaced,
) -> dict[str, FieldSupport]:
    """Leaf field of the sections `MEANT` -> its support.

    Args:
        rows: rows of the backend.
        spec: the spec.
        refused: all refusals of the spec.
        written: formats native keys in the trainer's own syntax.
        replaced: rendered keys that `backend.overrides` replaces.
    """
    by_field = {row.field: row for row in rows}
    reasons = {refusal.field: refusal.reason for refusal in reversed(refused)}
    result = {}
    for path in meant_fields(spec):
        row = next((by_field[above] for above in upwards(path) if above in by_field), None)
        homes = (
            above
            for above in upwards(path)
            if above in reasons and (above == path or above in by_field)
        )
        reason = next((reasons[above] for above in homes), "")
        if reason:
            result[path] = FieldSupport(Support.UNSUPPORTED, "refused", reason)
        elif row is None:
            result[path] = FieldSupport(Support.EXACT, implemented_by_xp(path))
        elif row.is_missing:
            result[path] = FieldSupport(
                Support.UNSUPPORTED, "refused if it is set", str(row.refuse)
            )
        else:
            result[path] = _meaning(row, spec, written, replaced)
    return result


def _meaning(
    row: Row, spec: RunSpec, written: Callable[[Native], str], replaced: Replaced
) -> FieldSupport:
    keys = row.keys(spec)
    own = {key: replaced[key] for key in keys if key in replaced}
    has_note = row.note_if is None or row.note_if(spec)
    sentences = (
        _text(row.note, spec) if has_note else None,
        *(f"Overridden: {loss}." for _, loss in own.values()),
    )
    note = " ".join(filter(None, sentences))
    parts = (
        written({**keys, **{key: value for key, (value, _) in own.items()}}),
        _text(row.implemented_by, spec),
    )
    receives = "; ".join(filter(None, parts)) or LEFT_OUT
    return FieldSupport(Support.EMULATED if note else Support.EXACT, receives, note)
