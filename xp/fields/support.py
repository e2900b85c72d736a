"""What a backend makes of a spec by its columns: native keys, refusals, and the cells of the parity table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any

from xp.fields.field import LEFT_OUT, Column, Native, Refusal, resolved_text
from xp.fields.table import BY_XP
from xp.lib.nested import upwards
from xp.lib.text import word_list
from xp.spec import RunSpec, Section

Columns = Mapping[str, Column]
"""Key path -> column of a backend; an empty path has the keys that are the same for every spec."""
Replaced = Mapping[str, tuple[Any, str]]
"""Rendered native key that the user's own replaces -> the user's value, and what no longer holds."""


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


def render(columns: Columns, spec: RunSpec) -> dict[str, Any]:
    """All native keys, in the order of the columns."""
    keys: dict[str, Any] = {}
    for path, column in columns.items():
        keys |= column.keys(path, spec)
    return keys


def value_refusals(spec: RunSpec) -> list[Refusal]:
    """Refusals of values that xp itself cannot carry out, the same on every backend."""
    return refusals(BY_XP, spec)


def value_warnings(spec: RunSpec) -> list[str]:
    """Sentences on values that run on every backend but do not do what their name says."""
    return list(filter(None, (column.difference(spec) for column in BY_XP.values())))


def with_sft(columns: Columns, sft: Columns, spec: RunSpec) -> Columns:
    """Columns of a spec: those of the stage `sft` only if there is one, since they repeat keys of the training's."""
    if spec.sft.data is None:
        return columns
    return {**columns, **sft}


def owners(columns: Columns, spec: RunSpec) -> dict[str, str]:
    """Native key -> its field; empty if the key is the same for every run."""
    return {key: path for path, column in columns.items() for key in column.keys(path, spec)}


def refusals(columns: Columns, spec: RunSpec) -> list[Refusal]:
    """Refusals of the columns, in their order."""
    reasons = {path: column.refusal(path, spec) for path, column in columns.items()}
    return [Refusal(path, reason) for path, reason in reasons.items() if reason is not None]


MEANT = word_list("""
    seed model algorithm training evaluation backend.attention backend.parallel backend.engine
""")
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
    """The part of xp that implements a field on backends without a column for it; raises LookupError if there is none."""
    path = re.sub(r"^env\.members\.[^.]+", "env", path)
    parts = (BY_XP[above].implemented_by for above in upwards(path) if above in BY_XP)
    part = next(filter(None, parts), None)
    if part is None:
        raise LookupError(
            f"{path}: the backend has no column for this field, and xp does not implement it"
        )
    return f"by xp, in {part}"


def meanings(
    columns: Columns,
    spec: RunSpec,
    refused: Sequence[Refusal],
    written: Callable[[Native], str],
    replaced: Replaced,
) -> dict[str, FieldSupport]:
    """Leaf field of the sections `MEANT` -> its support.

    Args:
        columns: columns of the backend.
        spec: the spec.
        refused: all refusals of the spec.
        written: formats native keys in the trainer's own syntax.
        replaced: rendered keys that `backend.overrides` replaces.
    """
    reasons = {refusal.field: refusal.reason for refusal in reversed(refused)}
    result = {}
    for path in meant_fields(spec):
        home = next((above for above in upwards(path) if above in columns), None)
        refused_at = (
            above
            for above in upwards(path)
            if above in reasons and (above == path or above in columns)
        )
        reason = next((reasons[above] for above in refused_at), "")
        if reason:
            result[path] = FieldSupport(Support.UNSUPPORTED, "refused", reason)
        elif home is None:
            result[path] = FieldSupport(Support.EXACT, implemented_by_xp(path))
        elif columns[home].is_missing:
            text = str(columns[home].refuse)
            result[path] = FieldSupport(Support.UNSUPPORTED, "refused if it is set", text)
        else:
            keys = columns[home].keys(home, spec)
            result[path] = _meaning(columns[home], keys, spec, written, replaced)
    return result


def _meaning(
    column: Column,
    keys: Native,
    spec: RunSpec,
    written: Callable[[Native], str],
    replaced: Replaced,
) -> FieldSupport:
    overridden = {key: replaced[key] for key in keys if key in replaced}
    losses = (f"Overridden: {loss}." for _, loss in overridden.values())
    note = " ".join(filter(None, (column.difference(spec), *losses)))
    values = {key: value for key, (value, _) in overridden.items()}
    parts = (written({**keys, **values}), resolved_text(column.implemented_by, spec))
    receives = "; ".join(filter(None, parts)) or LEFT_OUT
    return FieldSupport(Support.EMULATED if note else Support.EXACT, receives, note)
