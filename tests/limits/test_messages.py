"""Every message that says what a trainer, an engine or a launcher cannot do is xp's own, or names the test that shows it."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import pytest

from tests.limits.messages import messages
from tests.support.proofs import TRAINERS, missing_tests
from xp.fields.limits import Limit, limits_of
from xp.fields.message_limits import MESSAGES


@cache
def sites() -> list[tuple[str, str]]:
    """File and text of each message of the code."""
    return [*messages()]


@cache
def tables() -> list[Limit]:
    """The proofs of messages that specs meet (test_rows.py)."""
    rows = [limit for trainer in TRAINERS for limit in limits_of(trainer)]
    return [limit for limit in (*limits_of("xp"), *rows) if limit.words]


def has_proof(file: str, text: str) -> bool:
    is_met = any(limit.words in text for limit in tables())
    return is_met or any(limit.field == file and limit.words in text for limit in MESSAGES)


def test_every_message_in_the_code_has_a_proof() -> None:
    without = [f"{file}: {text}" for file, text in sites() if not has_proof(file, text)]
    assert not without, "\n".join(without)


def test_every_proof_is_of_a_message() -> None:
    unmet = [
        f"{limit.field}: {limit.words}"
        for limit in MESSAGES
        if not any(limit.field == file and limit.words in text for file, text in sites())
    ]
    assert not unmet, "\n".join(unmet)


def test_every_proof_is_a_test() -> None:
    rows = [limit for room in ("xp", *TRAINERS) for limit in limits_of(room)]
    assert missing_tests([*MESSAGES, *rows]) == []


def test_plan_and_explain_name_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    main = import_module("xp.__main__").main
    model = "model=qwen2.5-3b-instruct"
    words = ["env=whodunit", "hardware=a100x4", model, "backend.engine.expert_parallel=2"]
    assert main(["plan", "backend=trl", *words]) == 3
    proof = "tests/limits/test_trl.py::test_a_colocated_engine_has_these_arguments"
    assert proof in "".join(capsys.readouterr().err.split())
    assert main(["explain", "backend.engine.expert_parallel", *words]) == 0
    assert proof in "".join(capsys.readouterr().out.split())
