"""Every message that says what a trainer, an engine or a launcher cannot do is xp's own, or names the test that shows it."""

from __future__ import annotations

from functools import cache
from importlib import import_module

import pytest

from tests.limits.messages import NAMES, messages
from tests.support.proofs import TRAINERS, missing_tests
from xp.fields.limits import Limit, limits_of
from xp.fields.message_limits import MESSAGES, with_proof


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


def test_the_walk_finds_the_messages() -> None:
    """In each room, and also those that are made with a variable."""
    found = {file for file, _ in sites()}
    for file in ("batch.py", "refusals.py", "run_size.py"):
        assert f"xp/planning/{file}" in found
    for file in (
        "xp/worker/engines/teacher.py",
        "xp/execution/launchers/modal_app.py",
        "xp/contrib/skypilot/task.py",
    ):
        assert file in found
    assert len(sites()) > 80
    assert sum(bool(NAMES.search(text)) for _, text in sites()) > 40


def test_every_proof_is_of_a_message() -> None:
    unmet = [
        f"{limit.field}: {limit.words}"
        for limit in MESSAGES
        if not any(limit.field == file and limit.words in text for file, text in sites())
    ]
    assert not unmet, "\n".join(unmet)


def test_every_proof_is_a_test() -> None:
    assert missing_tests(MESSAGES) == []


@pytest.mark.parametrize(
    ("backend", "field", "message", "proof"),
    [
        ("trl", "algorithm.estimator", "TRL has no critic", "test_trl.py::test_it_has_no_critic"),
        ("slime", "training.min_p", "engines that guess tokens have no min_p", "test_engines.py::"),
        (
            "skyrl",
            "backend.parallel.tensor",
            "divisible by tensor, its key-value heads",
            "_slime.py::",
        ),
    ],
)
def test_a_refusal_names_its_proof(backend: str, field: str, message: str, proof: str) -> None:
    told = with_proof(backend, field, message)
    assert told.startswith(f"{message} (proof: `tests/limits/")
    assert proof in told


def test_a_refusal_of_xps_own_names_none() -> None:
    message = "buffer_tokens is more than the limit"
    assert with_proof("trl", "algorithm.overlong", message) == message


def test_plan_and_explain_name_the_proof(capsys: pytest.CaptureFixture[str]) -> None:
    main = import_module("xp.__main__").main
    model = "model=qwen2.5-3b-instruct"
    words = ["env=whodunit", "hardware=a100x4", model, "backend.engine.expert_parallel=2"]
    assert main(["plan", "backend=trl", *words]) == 3
    proof = "tests/limits/test_trl.py::test_a_colocated_engine_has_these_arguments"
    assert proof in "".join(capsys.readouterr().err.split())
    assert main(["explain", "backend.engine.expert_parallel", *words]) == 0
    assert proof in "".join(capsys.readouterr().out.split())
