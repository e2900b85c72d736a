"""The user's own native keys of a stage: those that a field renders or owns, those that break a promise, and the others."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import filter as matching
from functools import cache
from pathlib import Path
from typing import Any

from xp.fields.field import Native, Pin, Refusal

UNKNOWN_EFFECT = "xp does not know what it changes"
"""Sentence about a key that the trainer knows and xp does not."""


@dataclass(frozen=True)
class KeyTable:
    """Keys that no field renders, of the file `overrides.toml` beside a backend's catalog."""

    open: Collection[str]
    """Keys that a field renders and that the user may replace."""
    owned: Mapping[str, str]
    """Key -> the field with its meaning, which a remark may follow."""
    refused: Mapping[str, str]
    """Key that silently breaks a promise -> the reason with the fix."""


@cache
def _table(file: Path, known: frozenset[str], section: str = "") -> KeyTable:
    """The table of a training, or the section `sft` of the file."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    part = content.get(section, content)
    owned: dict[str, str] = {}
    for field, patterns in part.get("owned", {}).items():
        for pattern in patterns:
            owned |= dict.fromkeys(matching(known, pattern), field)
    return KeyTable(content["open"], owned, part.get("refused", {}))


@dataclass(frozen=True)
class NativeKeys:
    """Native keys of a stage's trainer, of which the user may set some."""

    section: str
    """Key path of the user's own: `backend.overrides` or `sft.overrides`."""
    known: Collection[str]
    """Keys of the trainer's catalog."""
    table: KeyTable
    pins: Mapping[str, Pin]
    owners: Mapping[str, str]
    """Native key -> its field, by the fields, without keys of the table, whose meaning may be another field's. Empty
    means that the key is the same for every run."""

    def fault(self, key: str) -> str | None:
        """Returns why overrides cannot set a key that the trainer has; None if they can."""
        if key in self.table.open:
            return None
        if key in self.table.owned:
            return f"xp has a field for this; set {self.table.owned[key]}"
        if key in self.table.refused:
            return self.table.refused[key]
        if key not in self.owners:
            return None
        if self.owners[key]:
            what = f"set {self.owners[key]}"
        elif key in self.pins:
            what = f"it is the same for every run: {self.pins[key].reason}; leave it out"
        else:
            what = "it is the same for every run; leave it out"
        return f"xp renders this key itself; {what}"

    def refusals(
        self, overrides: Mapping[str, Any], own_fault: Callable[[str, Any], str | None]
    ) -> Iterator[Refusal]:
        """Refusals of the user's own keys.

        Args:
            overrides: the keys with their values, as the trainer has them.
            own_fault: returns why the trainer itself would not take a key with a value; None if it would.
        """
        for key, value in overrides.items():
            fault = own_fault(key, value) or self.fault(key)
            if fault is not None:
                yield Refusal(f"{self.section}.{key.removeprefix('--')}", fault)

    def warnings(self, keys: Iterable[str]) -> list[str]:
        """The sentence about the user's own keys; none without keys."""
        names = ", ".join(key.removeprefix("--") for key in keys)
        if not names:
            return []
        return [f"{self.section}: xp does not know what these keys of the trainer change: {names}"]

    def replaced(self, overrides: Native) -> dict[str, tuple[Any, str]]:
        """Rendered keys that the user's own replace, each with the value and a remark."""
        return {
            key: (value, UNKNOWN_EFFECT)
            for key, value in overrides.items()
            if key in self.table.open
        }


def keys_of(
    section: str,
    file: Path,
    known: Collection[str],
    pins: Mapping[str, Pin],
    owners: Mapping[str, str],
) -> NativeKeys:
    """Native keys of a stage.

    Args:
        section: `backend.overrides`, or `sft.overrides` for which the section `sft` of the file comes first.
        file: table of the backend; a name in its lists of owned keys may have `*`.
        known: keys of the trainer's catalog.
        pins: keys with one value for every run.
        owners: native key -> its field, by the fields.
    """
    names = frozenset(known)
    is_sft = section.startswith("sft")
    table = _table(file, names, "sft" if is_sft else "")
    field_of = {key: field for key, field in owners.items() if key not in table.owned}
    if is_sft:
        training = _table(file, names)
        inherited = {key: field for key, field in training.owned.items() if key not in field_of}
        table = KeyTable(
            table.open, {**inherited, **table.owned}, {**training.refused, **table.refused}
        )
    return NativeKeys(section, known, table, pins, field_of)
