"""Rows that describe the support of a field of the spec on a backend.

A backend's rows give the native keys of a job, the refusals, the parity table and the names in hints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from xp.planning.backend import Meaning, Refusal, Support, meant_fields
from xp.spec import RunSpec

Native = Mapping[str, Any]
"""Native key -> value."""
Text = str | Callable[[RunSpec], str]
"""A constant, or a function of the spec."""

REFUSED = "refused if it is set"
LEFT_OUT = "nothing: the flag is left out"


@dataclass(frozen=True)
class Row:
    """Support of one field on one backend."""

    field: str
    """Key path; fields below it without their own row share this one. Empty: the row is the same for every spec."""
    render: str | Native | Callable[[RunSpec], Native] | None = None
    """Native keys and their values; a single name: the key that gets the field's value unchanged."""
    carried_by: Text = ""
    """The part of xp or of the trainer that implements the field, alone or in addition to the native keys."""
    receives: Text = ""
    """Description instead of the native keys and `carried_by`; empty: none."""
    note: Text = ""
    """One sentence about the difference; with a note, the support is emulated."""
    support: Support | Callable[[RunSpec], Support | None] | None = None
    """Degree of support, if `note` and `refuse` do not determine it."""
    refuse: Callable[[RunSpec], str | None] | None = None
    """Returns why this value cannot run and how to fix it; None if it can run."""
    native: tuple[str, ...] = ()
    """Native keys of the field that are written elsewhere, or not at all."""

    def keys(self, spec: RunSpec) -> Native:
        """The native keys of a spec."""
        if isinstance(self.render, str):
            return {self.render: attrgetter(self.field)(spec)}
        return self.render(spec) if callable(self.render) else self.render or {}


def render(rows: Sequence[Row], spec: RunSpec) -> dict[str, Any]:
    """All native keys, in the order of the rows."""
    return {key: value for row in rows for key, value in row.keys(spec).items()}


def owners(rows: Sequence[Row], spec: RunSpec) -> dict[str, str]:
    """Native key -> its field; empty if the key is the same for every run."""
    return {key: row.field for row in rows for key in (*row.keys(spec), *row.native)}


def refusals(rows: Sequence[Row], spec: RunSpec) -> list[Refusal]:
    """Refusals of the rows, in the order of the rows."""
    reasons = ((row.field, row.refuse(spec)) for row in rows if row.refuse is not None)
    return [Refusal(path, reason) for path, reason in reasons if reason is not None]


def meanings(
    rows: Sequence[Row], spec: RunSpec, refused: Sequence[Refusal], written: Callable[[Native], str]
) -> dict[str, Meaning]:
    """Leaf field of the sections `MEANT` -> its support.

    Args:
        rows: rows of the backend; each field must have one, or be below one.
        spec: the spec.
        refused: all refusals of the spec by the backend.
        written: formats native keys in the trainer's own syntax.
    """
    by_field = {row.field: row for row in rows}
    reasons = {refusal.field: refusal.reason for refusal in reversed(refused)}
    found = {}
    for path in meant_fields(spec):
        own = [by_field[above] for above in _upwards(path) if above in by_field]
        reason = next((reasons[row.field] for row in own if row.field in reasons), reasons.get(path, ""))
        found[path] = _meaning(own[0], spec, reason, written)
    return found


def _upwards(path: str) -> Iterator[str]:
    """The path itself, then its enclosing sections."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _meaning(row: Row, spec: RunSpec, reason: str, written: Callable[[Native], str]) -> Meaning:
    note, support = _text(row.note, spec), row.support(spec) if callable(row.support) else row.support
    if support is Support.UNSUPPORTED:
        return Meaning(support, REFUSED, note or reason)
    if reason:
        return Meaning(Support.UNSUPPORTED, "refused", reason)
    parts = (written(row.keys(spec)), _text(row.carried_by, spec))
    receives = _text(row.receives, spec) or "; ".join(part for part in parts if part) or LEFT_OUT
    return Meaning(support or (Support.EMULATED if note else Support.EXACT), receives, note)


def _text(text: Text, spec: RunSpec) -> str:
    return text(spec) if callable(text) else text
