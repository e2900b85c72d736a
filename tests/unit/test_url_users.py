"""Passwords in URLs: refused wherever the spec takes free text, never repeated, and never written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xp.__main__ import main
from xp.compose import compose
from xp.errors import XpError
from xp.evaluation.settings import settings
from xp.evaluation.words import read
from xp.spec.section import user_in_url

PASSWORD = "pw-opensesame"
URL = f"http://user:{PASSWORD}@example.org/v1"
INSPECT = ["env=inspect", "env.target=/tasks/file.py@task"]
VERIFIERS = ["env=verifiers", "env.target=my_env"]


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ([*INSPECT, f"env.options.roles={{grader:{{model:m,base_url:'{URL}'}}}}"], "roles.grader.base_url"),
        ([*INSPECT, f"env.options.arguments={{a:[1,{{b:'see {URL}'}}]}}"], "arguments.a.1.b"),
        ([*INSPECT, f"env.options.score='{URL}'"], "score"),
        ([*INSPECT, f"env.options.nosuch='{URL}'"], "nosuch"),
        ([*VERIFIERS, f"env.options.seats={{user:{{client:{{base_url:'{URL}'}}}}}}"], "seats.user.client.base_url"),
        ([f"model.path='{URL}'"], "path"),
        ([f"model.name='{URL}'"], "name"),
        (["model=hf", f"model.path='{URL}'"], "path"),
        ([f"model.chat_template.a='{URL}'"], "chat_template.a"),
        (["backend=skyrl", f"backend.overrides={{generator:{{endpoint:'{URL}'}}}}"], "generator.endpoint"),
        ([f"backend.overrides.x='{URL}'"], "x"),
        (["launcher=skypilot", f"launcher.options.x='{URL}'"], "x"),
        ([*INSPECT[:1], f"env.target='{URL}'"], ""),
    ],
)
def test_a_url_with_a_password_is_refused_with_its_path(overrides: list[str], path: str) -> None:
    with pytest.raises(XpError) as caught:
        compose(overrides)
    said = str(caught.value)
    assert PASSWORD not in said
    assert f"{path}: a URL with a user or a password" in said or not path
    assert "environment variable" in said or "name a secret" in said


@pytest.mark.parametrize("name", ["model.url", "model.name", "eval.python", "eval.engine", "eval.concurrency"])
def test_settings_of_an_evaluation_take_none_either(name: str) -> None:
    with pytest.raises(XpError) as caught:
        settings({name: URL})
    assert PASSWORD not in str(caught.value)
    assert "environment variable" in str(caught.value)


def test_the_words_of_an_evaluation_take_none_either() -> None:
    with pytest.raises(XpError) as caught:
        read(["env=multiply", "model=endpoint", f"model.url={URL}", "model.name=m"])
    assert PASSWORD not in str(caught.value)


def test_a_key_of_a_mapping_is_looked_at_too() -> None:
    assert user_in_url({"prices": {URL: [1, 2]}}) == "prices"


@pytest.mark.parametrize(
    "value",
    ["http://host/v1", "https://host/@scope/pkg", "/tasks/file.py@task", "a@b.org", {"a": ["hf://org/name@main"]}, 3],
)
def test_other_texts_with_an_at_sign_are_taken(value: Any) -> None:
    assert user_in_url(value) is None


def test_a_plan_writes_no_file_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--files", *INSPECT, f"env.options.roles={{grader:{{model:m,base_url:'{URL}'}}}}"])
    shown = capsys.readouterr()
    assert PASSWORD not in shown.out + shown.err
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "words",
    [
        ["model=" + URL],
        ["model=hf", f"model.path='{URL}'"],
        [f"env.options.prices={{'{URL}':[1,2]}}"],
        [f"+backend.overrides={{a:'{URL}'}}"],
    ],
)
@pytest.mark.parametrize("command", ["plan", "eval", "doctor"])
def test_no_command_repeats_a_password(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "env=multiply", *words])
    shown = capsys.readouterr()
    assert PASSWORD not in shown.out + shown.err
