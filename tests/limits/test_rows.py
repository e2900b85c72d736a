"""Every refusal of a trainer's columns is one of xp's own, or names a test that shows the trainer's limit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.proofs import TRAINERS
from tests.support.tables import table
from xp.composition import compose
from xp.errors import ExitCode
from xp.fields.field import OWN, Column
from xp.fields.limits import claims, limits_of, proof_of
from xp.fields.sft import SFT
from xp.fields.support import refusals, value_refusals, with_sft
from xp.fields.table import FIELDS, columns_of
from xp.lib.nested import upwards
from xp.planning.backend import backend_of
from xp.planning.refusals import card_refusals, image_refusals
from xp.spec import RunSpec

ROOT = Path(__file__).parents[2]
TABLES = ("algorithm", "engine", "limits", "machine", "skyrl", "slime", "training", "trl")
"""Tables of tests/tables with commands that a plan refuses; `limits` has those that no other table has."""

ADAPTERS = "model.lora={rank: 8, alpha: 16.0, dropout: 0.1, target_modules: null}"
CUTS = ("top_p=0.9", "top_k=5", "min_p=0.1", "repetition_penalty=1.1")
NOTED = (
    f"backend=trl {ADAPTERS}",
    "backend=trl model=qwen2.5-3b-instruct model.architecture.model_type=falcon_h1"
    " model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}",
    *(f"backend={name} training.{cut}" for name in ("trl", "skyrl", "slime") for cut in CUTS),
    *(f"backend={name} env.train.curriculum=pass_rate" for name in ("trl", "skyrl", "slime")),
    "backend=trl training.optimizer=sgd",
    "backend=trl training.optimizer=adamw_8bit",
    "backend=trl algorithm.importance_mask=token",
    "backend=slime algorithm.dynamic_sampling=true training.generation_prompts=64",
    "backend=slime model=qwen3.5-4b",
    f"backend=slime model=hf model.path={ROOT}/tests/recorded/qwen3_vl model.dialect=hermes",
    f"backend=skyrl {ADAPTERS} model=qwen3-30b-a3b",
    f"backend=skyrl {ADAPTERS} sft.data=solve",
    "backend=skyrl algorithm.importance_mask=token algorithm.importance_correction=token_truncate"
    " algorithm.importance_lower=0.5",
    "backend=skyrl algorithm.importance_correction=token_truncate algorithm.importance_lower=0.5",
    "backend=skyrl algorithm.ratio_from=engine",
    "backend=skyrl training.max_staleness=1 training.unfinished=continue",
    "backend=skyrl training.kl_coef=0.1 backend.engine.placement=separate backend.engine.accelerators=2",
    "backend=skyrl training.kl_coef=0.1 backend.parallel.offload_reference=false",
    "backend=skyrl training.kl_coef=0 backend.engine.placement=separate backend.engine.accelerators=2"
    " backend.parallel.offload_optimizer=true",
    "backend=skyrl training.kl_coef=0.1 backend.engine.placement=separate backend.engine.accelerators=2"
    " backend.parallel.offload_reference=false",
    "backend=skyrl evaluation.every=2",
)
"""Overrides of whodunit on four cards for notes that no plan of the tables has."""


def all_columns(trainer: str) -> dict[str, Column]:
    return columns_of((*FIELDS, *SFT), trainer)


def quoted(overrides: str) -> str:
    """Overrides for a shell, where a mapping is one word."""
    return re.sub(r"(\S+={[^}]*})", r"'\1'", overrides)


@cache
def specs() -> tuple[RunSpec, ...]:
    """Those of `composed`, composed once."""
    return tuple(composed())


def composed() -> Iterator[RunSpec]:
    """The specs of NOTED and of the tables' plans that are refused."""
    for overrides in NOTED:
        yield compose(["env=whodunit", "hardware=a100x4", *shlex.split(quoted(overrides))])
    for code, command, _ in [case.values for name in TABLES for case in table(name)]:
        program, *words = shlex.split(command)
        if program == "plan" and code == ExitCode.PLAN:
            yield compose([word for word in words if not word.startswith("-")])


@pytest.fixture(scope="module")
def refused() -> dict[str, set[tuple[str, str]]]:
    """Trainer -> the refusals of its columns and of the network that the tables' plans have: fields and messages."""
    messages: dict[str, set[tuple[str, str]]] = {trainer: set() for trainer in TRAINERS}
    for spec in specs():
        trainer = str(spec.backend.name)
        if trainer not in messages:
            continue
        columns = with_sft(columns_of(FIELDS, trainer), columns_of(SFT, trainer), spec)
        whole = refusals(columns, spec)
        network = [
            refusal
            for refusal in backend_of(spec).check(spec)
            if refusal.field.startswith("model.architecture")
        ]
        messages[trainer] |= {(refusal.field, refusal.reason) for refusal in (*whole, *network)}
    return messages


@pytest.fixture(scope="module")
def noted() -> dict[str, set[tuple[str, str]]]:
    """Trainer -> fields and notes of its columns, those that are the same for every spec and those of the plans."""
    notes = {
        trainer: {
            (field, column.note)
            for field, column in all_columns(trainer).items()
            if isinstance(column.note, str) and column.note
        }
        for trainer in TRAINERS
    }
    for spec in specs():
        trainer = str(spec.backend.name)
        for field, column in all_columns(trainer).items() if trainer in notes else ():
            note = column.difference(spec) if callable(column.note) else None
            if note:
                notes[trainer].add((field, note))
    return notes


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_note_has_a_proof_or_was_not_tried(
    trainer: str, noted: dict[str, set[tuple[str, str]]]
) -> None:
    without = [
        f"{field}: {claim}"
        for field, note in sorted(noted[trainer])
        for claim in claims(note)
        if proof_of(limits_of(trainer), field, claim) is None
    ]
    assert not without, "\n".join(without)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_column_with_a_note_is_met(
    trainer: str, noted: dict[str, set[tuple[str, str]]]
) -> None:
    """So that no note escapes the test of the proofs."""
    met = {field for field, _ in noted[trainer]}
    if trainer == "trl":
        met.add(
            "model.path"
        )  # Of a checkpoint with pictures on this machine; it says "Not tried:".
    unmet = [
        field for field, column in all_columns(trainer).items() if column.note and field not in met
    ]
    assert unmet == []


def test_every_refusal_of_all_trainers_has_a_proof() -> None:
    checks = (value_refusals, card_refusals, image_refusals)
    refused = {
        (refusal.field, refusal.reason)
        for spec in specs()
        for check in checks
        for refusal in check(spec)
    }
    without = [
        f"{field}: {reason}"
        for field, reason in sorted(refused)
        if proof_of(limits_of("xp"), field, reason) is None
    ]
    assert not without, "\n".join(without)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_refusal_has_a_proof(trainer: str, refused: dict[str, set[tuple[str, str]]]) -> None:
    fixed = {
        (field, column.refuse)
        for field, column in all_columns(trainer).items()
        if isinstance(column.refuse, str)
    }
    without = [
        f"{field}: {message}"
        for field, message in sorted(refused[trainer] | fixed)
        if proof_of(limits_of(trainer), field, message) is None
    ]
    assert not without, "\n".join(without)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_proof_is_of_a_refusal_or_a_note(
    trainer: str,
    refused: dict[str, set[tuple[str, str]]],
    noted: dict[str, set[tuple[str, str]]],
) -> None:
    """A limit that no plan of the tables meets is none of the trainer's, or lacks its line in tests/tables/limits.txt."""
    fixed = {
        (field, column.refuse)
        for field, column in all_columns(trainer).items()
        if isinstance(column.refuse, str)
    }
    messages = refused[trainer] | noted[trainer] | fixed
    unmet = [
        f"{limit.field}: {limit.words}"
        for limit in limits_of(trainer)
        if limit.proof != OWN
        and not any(
            limit.field in upwards(field) and limit.words in message for field, message in messages
        )
    ]
    assert not unmet, "\n".join(unmet)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_column_that_refuses_has_limits(trainer: str) -> None:
    """Also columns whose refusals the tables do not meet."""
    fields = {limit.field for limit in limits_of(trainer)}
    refusing = {
        field for field, column in all_columns(trainer).items() if column.refuse is not None
    }
    assert sorted(field for field in refusing if field not in fields) == []
