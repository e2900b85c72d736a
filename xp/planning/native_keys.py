"""The native keys of a trainer's stages: those of its columns, and which of the others a user may set."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from functools import cache
from pathlib import Path
from typing import Any

from xp.fields import support
from xp.fields.field import Native, Pin, Refusal
from xp.fields.support import Columns, FieldSupport, value_refusals
from xp.spec import RunSpec

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


@dataclass(frozen=True)
class TrainerKeys:
    """Functions of a Backend that follow from its columns and its catalogs of keys."""

    columns: Columns
    sft_columns: Columns
    """Columns of the stage `sft` alone."""
    pins: Mapping[str, Pin]
    """Keys with one value for every run."""
    table: Path
    """File with the keys that no field renders; a name in its lists of owned keys may have `*`."""
    catalog: Callable[[], Collection[str]]
    """Reads the keys that the trainer knows."""
    sft_catalog: Callable[[], Collection[str]]
    """The same for the stage `sft`."""
    read: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Names and values of the user's own keys as the trainer has them."""
    write: Callable[[Native], str]
    """Formats native keys in the trainer's own syntax."""
    is_shared: Callable[[str], bool] = lambda _: True
    """Returns whether the stage `sft` has this key of the training too."""
    with_owned: Callable[[dict[str, str]], dict[str, str]] = dict
    """Adds keys to the rendered ones whose meaning is a field's too: native key -> field."""

    def native_keys(self, spec: RunSpec) -> NativeKeys:
        """Keys of the training."""
        return self._keys("backend.overrides", self.catalog(), support.owners(self.columns, spec))

    def sft_keys(self, spec: RunSpec) -> NativeKeys:
        """Keys of the stage `sft`."""
        of_training = support.owners(self.columns, spec)
        shared = {key: field for key, field in of_training.items() if self.is_shared(key)}
        rendered = shared | support.owners(self.sft_columns, spec)
        return self._keys("sft.overrides", self.sft_catalog(), rendered)

    def field_refusals(self, spec: RunSpec) -> list[Refusal]:
        """Refusals of the columns."""
        return support.refusals(self._columns(spec), spec)

    def meanings(self, spec: RunSpec, refusals: Sequence[Refusal]) -> Mapping[str, FieldSupport]:
        """See xp.planning.backend.Backend.

        Args:
            spec: the spec.
            refusals: all of the trainer's.
        """
        refused = [*value_refusals(spec), *refusals]
        replaced = self.native_keys(spec).replaced(self.read(spec.backend.overrides))
        return support.meanings(self._columns(spec), spec, refused, self.write, replaced)

    def override_lines(self, spec: RunSpec) -> list[str]:
        """See xp.planning.backend.Backend."""
        return [
            *self.native_keys(spec).warnings(self.read(spec.backend.overrides)),
            *self.sft_keys(spec).warnings(self.read(spec.sft.overrides)),
        ]

    def _columns(self, spec: RunSpec) -> Columns:
        return support.with_sft(self.columns, self.sft_columns, spec)

    def _keys(self, section: str, known: Collection[str], rendered: dict[str, str]) -> NativeKeys:
        """Native keys of a stage; for that of the fine-tuning, the section `sft` of the file comes first."""
        names = frozenset(known)
        is_sft = section.startswith("sft")
        table = _table(self.table, names, "sft" if is_sft else "")
        owners = {
            key: field for key, field in self.with_owned(rendered).items() if key not in table.owned
        }
        if is_sft:
            training = _table(self.table, names)
            inherited = {key: field for key, field in training.owned.items() if key not in owners}
            table = KeyTable(
                table.open, {**inherited, **table.owned}, {**training.refused, **table.refused}
            )
        return NativeKeys(section, known, table, self.pins, owners)
