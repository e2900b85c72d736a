"""Refusals and errors say what to do, with a verb."""

from __future__ import annotations

import pytest

from tests.support.remedies import Message, bare_remedies, has_imperative, messages
from xp.__main__ import main

REFUSALS = ("Refusal", "refuse")


@pytest.fixture(scope="module")
def texts() -> list[Message]:
    return [*messages()]


def test_every_refusal_has_an_imperative(texts: list[Message]) -> None:
    refusals = [one for one in texts if one.kind in REFUSALS]
    assert len(refusals) > 200
    # `{}` at the end, or a part of a text: the remedy is made elsewhere, and the commands of tests/tables show it.
    wrong = [
        one for one in refusals if not has_imperative(one.text) and not one.text.endswith("{}")
    ]
    assert wrong == []


def test_no_remedy_is_a_key_a_flag_or_a_command_alone(texts: list[Message]) -> None:
    wrong = [
        one for one in texts if bare_remedies(one.text) and "xp knows the native" not in one.text
    ]
    assert len(texts) > 700
    assert wrong == []


def test_a_remedy_without_a_verb_is_found() -> None:
    assert bare_remedies("the run has no evaluation; python -m xp eval run=r") != []
    assert bare_remedies("no shape is legal; or training.group_size=4") != []
    assert bare_remedies("no shape is legal; set training.group_size=4") == []
    assert not has_imperative("7 does not divide the 8 accelerators")
    assert has_imperative("7 does not divide the 8 accelerators; set a divisor")


def test_a_key_of_skyrls_rows_names_the_option_itself(capsys: pytest.CaptureFixture[str]) -> None:
    key = "generator.step_wise_trajectories"
    words = ["plan", "backend=skyrl", "hardware=a100x4", "model=qwen3-4b"]
    for word in (f"backend.overrides.{key}=true", f"{key}=true"):
        assert main([*words, word]) != 0
        assert "env.options.max_rows" in capsys.readouterr().err
