"""Every key of the public scripts and tutorials is answered with xp's, and no answer is refused afterwards."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from pathlib import Path

import pytest

from xp.__main__ import main
from xp.cli.explain import fields_of
from xp.composition import GROUPS, compose
from xp.composition.known_names import RENAMED, option_alias, unread_variables
from xp.errors import ExitCode
from xp.lib.reading import yaml_value
from xp.planning.backend import spec_refusals

KEYS = yaml_value(Path(__file__).with_name("tutorial_keys.yaml").read_text(encoding="utf-8"))
TUTORIALS = {name: (tuple(one["base"]), one["answers"]) for name, one in KEYS["tutorials"].items()}


@pytest.mark.parametrize(
    ("base", "key", "answer"),
    [
        pytest.param(base, key, answer, id=f"{name}:{key}")
        for name, (base, answers) in TUTORIALS.items()
        for key, answer in answers.items()
    ],
)
def test_a_key_of_a_tutorial_is_answered_and_the_answer_plans(
    base: tuple[str, ...], key: str, answer: tuple[str, ...]
) -> None:
    said = _said(key.split(" ", 1) if key.startswith("--") else [key])
    assert (
        "in xp:" in said
        or "xp renders" in said
        or "not beside xp" in said
        or "passes through" in said
    ), said
    for part in answer:
        assert part in said, said
    given = [part for part in answer if "=" in part]
    beside = [text for part in answer for text in KEYS["beside"].get(part, ())]
    assert not given or _refused((*_without(base, given), *given, *beside)) == []


def test_all_keys_that_a_tutorial_is_answered_with_are_keys_of_xp() -> None:
    named = {
        part.partition("=")[0]
        for _, answers in TUTORIALS.values()
        for answer in answers.values()
        for part in answer
    }
    of_the_user = {"env.secrets.OPENAI_API_KEY"}
    known = {*GROUPS, *of_the_user, *_fields()}
    assert [
        key
        for key in named
        if key not in known and not any(path.startswith(f"{key}.") for path in known)
    ] == []


def test_a_variable_of_the_scripts_that_is_exported_is_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENREWARD_UPLOAD_ROLLOUT", "true")
    assert main(["plan"]) == 0
    told = "OPENREWARD_UPLOAD_ROLLOUT is exported, but xp does not read it; in xp: upload_rollouts=true"
    assert told in capsys.readouterr().err
    assert unread_variables({"PATH": "/bin", "MODEL": ""}) == []


def test_the_fields_that_words_are_renamed_to_exist() -> None:
    assert [field for field in RENAMED.values() if field not in _fields()] == []


@cache
def _fields() -> frozenset[str]:
    """Every field of xp's, those too that are null in most compositions."""
    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    skyrl = TUTORIALS["skyrl"][0]
    slime = TUTORIALS["slime"][0]
    more = [[*skyrl, word] for word in ("algorithm=ppo", "algorithm=sapo", lora)]
    specs = [compose(list(given)) for given in (skyrl, slime, *more)]
    return frozenset(path for spec in specs for path in fields_of(spec))


@cache
def _refused(words: tuple[str, ...]) -> list[str]:
    return [str(refusal) for refusal in spec_refusals(compose([*words]))]


def _said(command: list[str]) -> str:
    """The whole message of the command line that is refused."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert main(["plan", *command]) == ExitCode.CONFIG
    return err.getvalue()


def _without(base: tuple[str, ...], given: list[str]) -> list[str]:
    """The base without the groups that the answer chooses itself."""
    chosen = {text.partition("=")[0] for text in given if "." not in text.partition("=")[0]}
    return [text for text in base if text.partition("=")[0] not in chosen]


def test_an_option_is_known_by_its_name_first_and_then_in_another_case() -> None:
    assert option_alias("model", "Tiny", ["tiny", "Tiny"]) == "Tiny"
    assert option_alias("model", "TINY", ["tiny"]) == "tiny"
    assert option_alias("model", "huge", ["tiny"]) is None
    assert compose(["recipes=null"]) == compose([])
