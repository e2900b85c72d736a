"""Proofs of refusals and of differences: the test that shows what a trainer, an engine or a model's code cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xp.fields.field import OWN, Column, Proof
from xp.fields.sft import SFT
from xp.fields.table import FIELDS, columns_of
from xp.lib.nested import upwards
from xp.lib.plugins import Kind, load, plugins


@dataclass(frozen=True)
class Limit:
    """The proof of one message of one field."""

    field: str
    """Key path."""
    words: str
    """A part of the message that no other message of the field has; empty if all its messages have this proof."""
    proof: str
    """`OWN`, or `FILE::FUNCTION` of a test that fails where a new version has no such limit."""


def proof_of(limits: Iterable[Limit], field: str, message: str) -> str | None:
    """The proof of a message of a field. None means that nobody has looked for one."""
    above = (*upwards(field),)
    proofs = (limit.proof for limit in limits if limit.field in above and limit.words in message)
    return next(proofs, None)


def claims(note: str) -> list[str]:
    """The sentences of a note that say what a trainer does; what nobody has tried claims nothing."""
    sure = note.partition("Not tried:")[0].strip()
    return [sentence for sentence in re.split(r"(?<=\.) (?=[A-Z])", sure) if sentence]


def limits_of(backend: str) -> list[Limit]:
    """The proofs of a backend's columns, or of xp's own (`xp`)."""
    columns: Mapping[str, Column] = columns_of((*FIELDS, *SFT), backend) or _of_plugin(backend)
    return [limit for path, column in columns.items() for limit in _limits(path, column.proof)]


def _of_plugin(backend: str) -> Mapping[str, Column]:
    """Columns that a plug-in's module offers as `COLUMNS` and `SFT_COLUMNS`."""
    if all(plugin.name != backend for plugin in plugins(Kind.BACKEND)):
        return {}
    module = load(Kind.BACKEND, backend)
    return {**getattr(module, "COLUMNS", {}), **getattr(module, "SFT_COLUMNS", {})}


def _limits(path: str, proof: Proof) -> Iterator[Limit]:
    proofs = {"": proof} if isinstance(proof, str) else proof
    for words, name in proofs.items():
        yield Limit(path, words, _test(name))


def _test(proof: str) -> str:
    """The whole name of a proof's test."""
    if proof == OWN:
        return OWN
    place, _, name = proof.partition("::")
    folder, _, file = place.rpartition("/")
    return f"tests/{folder or 'limits'}/test_{file}.py::test_{name}"
