"""Passwords in URLs: refused wherever the spec takes free text, never repeated, and never written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xp.__main__ import main
from xp.spec.section import user_in_url

PASSWORD = "pw-opensesame"
URL = f"http://user:{PASSWORD}@example.org/v1"
INSPECT = ["env=inspect", "env.target=/tasks/file.py@task"]


@pytest.mark.parametrize(
    "value",
    [
        "http://host/v1",
        "https://host/@scope/pkg",
        "/tasks/file.py@task",
        "a@b.org",
        {"a": ["hf://org/name@main"]},
        3,
    ],
)
def test_other_texts_with_an_at_sign_are_taken(value: Any) -> None:
    assert user_in_url(value) is None


def test_a_plan_writes_no_file_with_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(
        ["plan", "--files", *INSPECT, f"env.options.roles={{grader:{{model:m,base_url:'{URL}'}}}}"]
    )
    shown = capsys.readouterr()
    assert PASSWORD not in shown.out + shown.err
    assert not list(tmp_path.rglob("*"))
