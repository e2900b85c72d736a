"""Every key of the public scripts and tutorials is answered with xp's, and no answer is refused afterwards."""

from __future__ import annotations

import contextlib
import io
import random
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from xp.__main__ import main
from xp.cli.explain import fields_of
from xp.composition import GROUPS, compose
from xp.composition.known_names import RENAMED, unread_variables
from xp.composition.native_names import catalogs, hint
from xp.errors import ExitCode
from xp.planning.backend import spec_refusals

KEYS = yaml.safe_load(Path(__file__).with_name("tutorial_keys.yaml").read_text(encoding="utf-8"))
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


def _native_keys(number: int) -> list[tuple[str, str]]:
    """A random sample of each backend's catalog, the same for every run of the test."""
    return [
        (backend, key)
        for backend, keys in catalogs().items()
        for key in random.Random(1).sample(sorted(keys), min(number, len(keys)))
    ]


@pytest.mark.parametrize("backend", ["skyrl", "slime", "trl"])
def test_no_answer_to_a_native_key_is_false(backend: str) -> None:
    faults = [
        fault
        for name, key in _native_keys(40)
        if name == backend
        for fault in _false_answer(name, key)
    ]
    assert faults == []


def _false_answer(backend: str, key: str) -> list[str]:
    """What is wrong with the answer to a key of a catalog."""
    said = hint(key)
    if said is None:
        return [f"{key}: no answer"]
    if "passes through: " in said:
        options_named = re.findall(r"backend=([\w-]+) '", said)
        return [fault for option in options_named for fault in _not_passed(option, backend, key)]
    field = re.match(r"in xp: ([a-z_]+(?:\.[a-z_0-9]+)+)", said)
    is_true = field is None or any(
        path == field[1] or path.startswith(f"{field[1]}.") for path in _fields()
    )
    return [] if is_true else [f"{key}: {said}: no such field"]


@cache
def _fields() -> frozenset[str]:
    """Every field of xp's, those too that are null in most compositions."""
    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    skyrl = TUTORIALS["skyrl"][0]
    slime = TUTORIALS["slime"][0]
    more = [[*skyrl, word] for word in ("algorithm=ppo", "algorithm=sapo", lora)]
    specs = [compose(list(given)) for given in (skyrl, slime, *more)]
    return frozenset(path for spec in specs for path in fields_of(spec))


SAMPLES = {"bool": True, "int": 1, "float": 1.0, "list": [], "dict": {}, "union": True}


def _sample(known: Mapping[str, Any]) -> Any:
    """A value that the catalog's words for a key allow."""
    if known.get("choices") or known.get("nargs") == 0:
        return (known.get("choices") or [True])[0]
    kind = str(known.get("type") or "str").removeprefix("Optional[")
    value = SAMPLES.get(re.split(r"[\[ |]", kind)[0].rstrip("]").lower(), "a")
    if kind == "loads":
        value = "{}"
    elif "origin" in known:
        value = str(value)
    return [value] * known["nargs"] if isinstance(known.get("nargs"), int) else value


def _not_passed(option: str, backend: str, key: str) -> list[str]:
    """Why a backend refuses what it was said to take."""
    name = key.lstrip("-")
    value = _sample(catalogs()[backend][key])
    spec = compose(["env=whodunit", "hardware=a100x4", f"backend={option}"])
    overrides = {**spec.backend.overrides, name: value}
    tried = spec.model_copy(
        update={"backend": spec.backend.model_copy(update={"overrides": overrides})}
    )
    return [str(one) for one in spec_refusals(tried)]


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
