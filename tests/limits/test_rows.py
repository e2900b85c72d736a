"""Every refusal of a trainer's rows is one of xp's own, or names a test that shows the trainer's limit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from xp.composition import compose
from xp.errors import XpError
from xp.planning.backend import backend_of
from xp.planning.limits import OWN, Limit, proof_of
from xp.planning.rows import Row, refusals
from xp.planning.shared_rows import with_sft
from xp.spec import RunSpec

ROOT = Path(__file__).parents[2]
TRAINERS = ("trl", "skyrl", "slime")
TABLES = ("algorithm", "engine", "limits", "machine", "skyrl", "slime", "spec", "training", "trl")
"""Tables of tests/tables with commands that a plan refuses; `limits` has those that no other table has."""


def rows_of(trainer: str) -> tuple[Row, ...]:
    place = f"xp.backends.{trainer}.control.rows"
    sft: Iterable[Row] = import_module(f"{place}.sft").SFT
    return (*import_module(place).ROWS, *sft)


def limits_of(trainer: str) -> tuple[Limit, ...]:
    limits: tuple[Limit, ...] = import_module(f"xp.backends.{trainer}.control.limits").LIMITS
    return limits


def specs() -> Iterator[RunSpec]:
    """Specs of the plans in the tables, refused or not; a command that no spec comes of is left out."""
    for name in TABLES:
        names = {"ROOT": str(ROOT)}
        for line in (ROOT / f"tests/tables/{name}.txt").read_text().splitlines():
            if definition := re.fullmatch(r"([A-Z]+) = (.*)", line):
                names[definition[1]] = definition[2]
            elif line.startswith("plan "):
                command = re.sub(r"\$([A-Z]+)", lambda word, names=names: names[word[1]], line)
                words = [word for word in shlex.split(command)[1:] if not word.startswith("-")]
                try:
                    yield compose(words)
                except XpError:
                    continue


@pytest.fixture(scope="module")
def refused() -> dict[str, set[tuple[str, str]]]:
    """Trainer -> the refusals of its rows and of the network that the tables' plans have: fields and messages."""
    messages: dict[str, set[tuple[str, str]]] = {trainer: set() for trainer in TRAINERS}
    for spec in specs():
        trainer = str(spec.backend.name)
        if trainer not in messages:
            continue
        own = import_module(f"xp.backends.{trainer}.control.rows")
        sft = import_module(f"xp.backends.{trainer}.control.rows.sft").SFT
        whole = refusals(with_sft(own.ROWS, sft, spec), spec)
        fields = ("hardware", "model.architecture")
        network = [one for one in backend_of(spec).check(spec) if one.field.startswith(fields)]
        messages[trainer] |= {(refusal.field, refusal.reason) for refusal in (*whole, *network)}
    return messages


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_refusal_has_a_proof(trainer: str, refused: dict[str, set[tuple[str, str]]]) -> None:
    fixed = {(row.field, row.refuse) for row in rows_of(trainer) if isinstance(row.refuse, str)}
    without = [
        f"{field}: {message}"
        for field, message in sorted(refused[trainer] | fixed)
        if proof_of(limits_of(trainer), field, message) is None
    ]
    assert not without, "\n".join(without)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_proof_is_of_a_refusal(
    trainer: str, refused: dict[str, set[tuple[str, str]]]
) -> None:
    """A limit that no plan of the tables meets is none of the trainer's, or lacks its line in tests/tables/limits.txt."""
    fixed = {(row.field, row.refuse) for row in rows_of(trainer) if isinstance(row.refuse, str)}
    messages = refused[trainer] | fixed
    unmet = [
        f"{limit.field}: {limit.words}"
        for limit in limits_of(trainer)
        if limit.proof != OWN
        and not any(field == limit.field and limit.words in message for field, message in messages)
    ]
    assert not unmet, "\n".join(unmet)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_row_that_refuses_has_limits(trainer: str) -> None:
    """Also rows whose refusals the tables do not meet."""
    fields = {limit.field for limit in limits_of(trainer)}
    refusing = {row.field for row in rows_of(trainer) if row.refuse is not None}
    assert sorted(field for field in refusing if field not in fields) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_proof_is_a_test(trainer: str) -> None:
    for limit in limits_of(trainer):
        if limit.proof != OWN:
            file, _, name = limit.proof.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), limit.proof
