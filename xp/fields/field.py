"""A field of the table and its columns: native keys, differences and refusals of one trainer, with their proofs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import NoneType
from typing import Any, Final, get_args

from xp.spec import RunSpec

Native = Mapping[str, Any]
"""Native key -> value."""
Text = str | Callable[[RunSpec], str | None]
"""A constant, or a function of the spec; None is no text."""
Condition = Callable[[RunSpec], object]
Check = Callable[[RunSpec], str | None]
"""Returns why a value cannot run and how to fix it; None if it can."""
Proof = str | Mapping[str, str]
"""The proof of all messages, or words of a message -> its proof: `OWN`, `FILE::NAME` for `test_NAME` in
tests/limits/test_FILE.py, or `FOLDER/FILE::NAME` for one in another folder of tests."""
OWN: Final = "xp"
"""Proof of a message that is not a limit of a trainer: arithmetic, a meaning of the spec, or a part that xp lacks."""
LEFT_OUT: Final = "nothing: the flag is left out"


@dataclass(frozen=True)
class Column:
    """Support of one field by one trainer."""

    render: str | tuple[str, ...] | Native | Callable[[RunSpec], Native] = dataclasses.field(
        default_factory=dict
    )
    """Native keys and their values. A name, or each of several, is a key that gets the field's value, if the section of
    the field is not null."""
    value: Callable[[Any], Any] | None = None
    """The value of named keys for the field's value. None means that they are the same."""
    render_if: Condition | None = None
    """Returns whether named keys are written. None means always."""
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
    only: Any = None
    """The one value that can run. None means that `refuse` and `refuse_if` tell."""
    proof: Proof = dataclasses.field(default_factory=dict)
    """Proof of the note and of the refusal."""

    @property
    def is_missing(self) -> bool:
        """True if the trainer does not have the field."""
        return isinstance(self.refuse, str) and self.refuse_if is None and self.only is None

    def keys(self, path: str, spec: RunSpec) -> Native:
        """The native keys of a spec for the field at this key path."""
        if callable(self.render):
            return self.render(spec)
        if isinstance(self.render, Mapping):
            return self.render
        section, name = _place(path, spec)
        if section is None or (self.render_if is not None and not self.render_if(spec)):
            return {}
        value = getattr(section, name)
        if self.value is not None:
            value = self.value(value)
        return dict.fromkeys([self.render] if isinstance(self.render, str) else self.render, value)

    def difference(self, spec: RunSpec) -> str | None:
        """The note, if it applies to the spec."""
        if self.note_if is not None and not self.note_if(spec):
            return None
        return resolved_text(self.note, spec)

    def refusal(self, path: str, spec: RunSpec) -> str | None:
        """Returns why the spec's value cannot run; None if it can."""
        if self.is_missing:
            can_run = _is_off(path, spec)
        elif self.only is not None:
            can_run = attrgetter(path)(spec) == self.only
        else:
            can_run = self.refuse_if is not None and not self.refuse_if(spec)
        if can_run or self.refuse is None:
            return None
        return resolved_text(self.refuse, spec)


@dataclass(frozen=True)
class Field:
    """A field of the spec, with a column for each trainer that receives or refuses something of it."""

    path: str
    """Key path; fields below it without their own columns share these."""
    trl: Column | str | None = None
    """A name alone is the native key that gets the field's value, also for the next two."""
    skyrl: Column | str | None = None
    slime: Column | str | None = None
    xp: Column | str | None = None
    """xp's own part, for every backend. A name alone is the module or package that implements the field for a trainer
    without a column. Refusals are those of all backends, a note is a warning; `proof` is also that of refusals by the
    machine's cards and files."""


@dataclass(frozen=True)
class Pin:
    """A native key with one value for every run."""

    value: Any
    reason: str
    """The reason, which follows a colon."""


@dataclass(frozen=True)
class Refusal:
    """A reason why a spec cannot run on a backend."""

    field: str
    """Key path as in the spec."""
    reason: str
    """One sentence with a remedy."""

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


def by_xp(modules: Mapping[str, str]) -> Iterator[Field]:
    """Fields that xp alone implements: key path -> module or package."""
    for path, module in modules.items():
        yield Field(path, xp=module)


def resolved_text(text: Text, spec: RunSpec) -> str | None:
    """The text for a spec."""
    return text(spec) if callable(text) else text


def _place(path: str, spec: RunSpec) -> tuple[Any, str]:
    """The section of a field, and the field's name in it."""
    above, _, name = path.rpartition(".")
    return attrgetter(above)(spec) if above else spec, name


def _is_off(path: str, spec: RunSpec) -> bool:
    section, name = _place(path, spec)
    value = getattr(section, name)
    if NoneType in get_args(type(section).model_fields[name].annotation):
        return value is None
    if isinstance(value, bool):
        return value is False
    return bool(value == 1)
