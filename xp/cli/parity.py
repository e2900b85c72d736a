"""One spec on three trainers: what each receives of every field, and how well it supports the field."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path

from xp.composition import compose
from xp.composition.faults import nearest_key
from xp.errors import XpError
from xp.planning.backend import FieldSupport, Support, backend_of, meant_fields
from xp.spec import BackendName, RunSpec

REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4")
"""Spec behind docs/parity.md: the public SkyRL example's model and machine."""
SIGNS = {Support.EXACT: "", Support.EMULATED: "≈ ", Support.UNSUPPORTED: "✗ "}


@dataclass(frozen=True)
class ParityRow:
    """Row of one field."""

    field: str
    value: str
    meanings: Mapping[str, FieldSupport]


def specs_of(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> dict[str, RunSpec]:
    """Composes the same overrides for each of xp's backends, and for a plugin's backend if they select one.

    Raises:
        XpError: the overrides do not compose.
    """
    others = [text for text in overrides if not text.startswith("backend=")]
    chosen = [text for text in overrides if text.startswith("backend=")]
    specs: dict[str, RunSpec] = {name: compose([*others, f"backend={name}"], config_dirs) for name in BackendName}
    for spec in (compose([*others, *chosen], config_dirs) for _ in chosen[:1]):
        specs.setdefault(spec.backend.name, spec)
    return specs


def rows(specs: Mapping[str, RunSpec]) -> list[ParityRow]:
    """Rows of the table, in the order of the schema."""
    meanings = {name: backend_of(spec).meanings(spec) for name, spec in specs.items()}
    fields = dict.fromkeys(field for spec in specs.values() for field in meant_fields(spec))
    return [ParityRow(field, _value(field, specs), _of(field, meanings)) for field in fields]


def below(table: Sequence[ParityRow], prefixes: Sequence[str]) -> list[ParityRow]:
    """Rows whose key begins with one of the prefixes, or all rows; raises XpError for a prefix that no key has."""
    for prefix in prefixes:
        if not any(row.field.startswith(prefix) for row in table):
            raise XpError(f"no key begins with {prefix}{nearest_key(prefix, [row.field for row in table])}")
    return [row for row in table if not prefixes or row.field.startswith(tuple(prefixes))]


def as_json(table: Iterable[ParityRow]) -> str:
    """JSON list of objects: key, value, and for each backend its support, what it receives, and a note."""
    return json.dumps(
        [
            {"key": row.field, "value": row.value}
            | {str(name): asdict(meaning) for name, meaning in row.meanings.items()}
            for row in table
        ],
        indent=2,
        ensure_ascii=False,
    )


def lines(table: Iterable[ParityRow]) -> Iterator[str]:
    """Lines for a terminal: a field, then one line per backend with its support and what it receives."""
    for row in table:
        yield f"{row.field} = {row.value}"
        for name, meaning in row.meanings.items():
            note = f"  ({meaning.note})" if meaning.note else ""
            yield f"  {name:6} {meaning.support:12} {meaning.receives}{note}"


def refused(specs: Mapping[str, RunSpec]) -> dict[str, list[str]]:
    """Backend -> reasons why it refuses the spec; backends that accept it are left out."""
    refusals = {name: [str(one) for one in backend_of(spec).refusals(spec)] for name, spec in specs.items()}
    return {name: reasons for name, reasons in refusals.items() if reasons}


def _of(field: str, meanings: Mapping[str, Mapping[str, FieldSupport]]) -> dict[str, FieldSupport]:
    return {name: of_one[field] for name, of_one in meanings.items() if field in of_one}


def _value(field: str, specs: Mapping[str, RunSpec]) -> str:
    """The value of a field, or each backend's value if they differ."""
    values = {name: _shown(attrgetter(field)(spec)) for name, spec in specs.items() if field in set(meant_fields(spec))}
    first = next(iter(values.values()))
    others = [f"{name}: {value}" for name, value in values.items() if value != first]
    return f"{first} ({', '.join(others)})" if others else first


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
