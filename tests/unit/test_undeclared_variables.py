"""A variable that a task's own files want and the spec does not declare is refused by the plan, as by the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.harbor_tasks import CONFIG, write_task
from xp.__main__ import main
from xp.errors import ExitCode

NAME = "XP_TEST_JUDGE"


def words(tmp_path: Path, value: str) -> list[str]:
    for split in ("train", "test"):
        config = f"{CONFIG}[environment.env]\nKEY = '{value}'\n"
        write_task(tmp_path / "tasks" / split / "a", config=config)
    return ["env=harbor", f"env.target={tmp_path}/tasks", "env.sandbox=none"]


@pytest.mark.parametrize(
    ("value", "is_exported", "more", "code"),
    [
        (f"${{{NAME}}}", False, [], ExitCode.SECRET),
        (f"${{{NAME}:-none}}", True, [], ExitCode.SECRET),
        (f"${{{NAME}:-none}}", False, [], ExitCode.OK),
        (f"${{{NAME}}}", True, [f"env.secrets.{NAME}=null"], ExitCode.OK),
    ],
)
def test_the_plan_refuses_it_with_the_key_to_set(
    value: str,
    is_exported: bool,
    more: list[str],
    code: ExitCode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if is_exported:
        monkeypatch.setenv(NAME, "a-value-of-the-shell")
    else:
        monkeypatch.delenv(NAME, raising=False)
    assert main(["plan", *words(tmp_path, value), *more]) == code
    error = capsys.readouterr().err
    assert ("set env.secrets." in error) == (code is ExitCode.SECRET)
    assert "a-value-of-the-shell" not in error
