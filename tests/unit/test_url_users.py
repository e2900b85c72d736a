"""Passwords in URLs: refused wherever the spec takes free text, never repeated, and never written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xp.__main__ import main
from xp.composition import compose
from xp.errors import XpError
from xp.evaluation.settings import settings
from xp.spec.section import user_in_url

PASSWORD = "pw-opensesame"
URL = f"http://user:{PASSWORD}@example.org/v1"
INSPECT = ["env=inspect", "env.target=/tasks/file.py@task"]


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


TOKENS = (
    "sk-proj-0123456789abcdefghij",
    "sk-ant-api03-Zx8Kq2-ab_0123456789abcdefghijABCDEFGHIJ",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "xoxb-0123456789-abcdefghij",
    "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
)
OWN = ["env=inspect", "env.provider=theirs.envs:Env", "env.target=null"]


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_refused_with_its_path_wherever_free_text_is_taken(token: str) -> None:
    for overrides, path in (
        ([*OWN, f"env.options={{a:[1,{{key:'Bearer {token}'}}]}}"], "env.options: a.1.key"),
        ([f"backend.overrides.x='{token}'"], "backend.overrides: x"),
        (["launcher=skypilot", f"launcher.options.x='{token}'"], "launcher.options: x"),
        ([f"model.chat_template.a='{token}'"], "chat_template.a"),
    ):
        with pytest.raises(XpError) as caught:
            compose(overrides)
        assert f"{path}: a text with the shape of a token" in str(caught.value)
        assert "env.secrets.NAME" in str(caught.value)
        assert token not in str(caught.value)
    with pytest.raises(XpError, match=r"eval\.python: a text with the shape of a token") as caught:
        settings({"eval.python": token})
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn-compatible-classifier-v2",
        "hf_AutoModelForCausalLM",
        "hf_qwen25instruct7bmodel",
        "pypi-a-package-with-a-long-name-of-several-words-2",
        "as-internationalisation",
        "0123456789abcdef0123456789abcdef01234567",
        "s3://bucket/sk-runs/2026-01-01",
        "whodunit-mini-20260101-120000-abcdef",
        "ask-the-model-whether-it-is-ready-1",
    ],
)
def test_names_paths_and_digests_are_no_tokens(text: str) -> None:
    assert compose([*OWN, f"env.options={{a:'{text}'}}"])
