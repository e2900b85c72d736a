"""Plans with sandboxes in a cloud: what they refuse before anything starts, with the key to set."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.clouds import cloud_task
from tests.support.harbor_tasks import CONFIG
from tests.support.harness_programs import harness
from tests.support.tables import table
from xp.__main__ import main
from xp.contrib.harbor.cloud_host import is_running, owner
from xp.contrib.harness.provider import _of_server
from xp.errors import ExitCode
from xp.spec.env import SandboxKind

KEY = "env.secrets.DAYTONA_API_KEY=null"
DAYTONA = ("env.sandbox=daytona", KEY)
TERMINUS = "env.options.agent=terminus-2"


def planned(tmp_path: Path, *words: str, config: str = CONFIG) -> int:
    cloud_task(tmp_path / "tasks/a", config=config)
    return main(["plan", f"env.target={tmp_path / 'tasks'}", "model=tiny", *words])


@pytest.mark.parametrize(("code", "command", "words"), table("cloud_sandboxes"))
def test_a_plan_says_what_to_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, command: str, words: list[str]
) -> None:
    assert planned(tmp_path, *shlex.split(command)) == code
    error = capsys.readouterr().err
    assert [word for word in words if word not in error] == []


@pytest.mark.parametrize("provider", ["harbor", "harness"])
def test_a_task_cannot_ask_for_the_key_of_the_account(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "a-value-of-the-shell")
    config = f"{CONFIG}[environment.env]\nMINE = '${{DAYTONA_API_KEY}}'\n"
    more = [TERMINUS] if provider == "harness" else []
    assert planned(tmp_path, f"env={provider}", *DAYTONA, *more, config=config) == ExitCode.SECRET
    error = capsys.readouterr().err
    assert "DAYTONA_API_KEY, the key of your account, which no sandbox gets" in error
    assert "a-value-of-the-shell" not in error


def test_a_server_of_tasks_does_not_get_the_key_of_the_account() -> None:
    secrets = {"DAYTONA_API_KEY": None, "API_KEY": None}
    changes = {"sandbox": SandboxKind.DAYTONA, "secrets": secrets}
    config = harness(Path("https://example.org")).model_copy(update=changes)
    assert set(_of_server(config).secrets) == {"API_KEY"}


def test_a_label_names_a_process_that_runs() -> None:
    name = f"{owner()}-0"
    assert is_running(name)
    first, pid, began, number = name.rsplit("-", 3)
    assert not is_running(f"{first}-{pid}-{int(began) - 1}-{number}")
    assert not is_running("xp-other")
