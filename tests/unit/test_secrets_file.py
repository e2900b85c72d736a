"""Secrets that reach a process by a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from xp.envs.secrets_file import VARIABLE, environment
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.execution.launchers.secrets_files import write


def written(path: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path.write_text(text)
    path.chmod(mode)
    return {VARIABLE: str(path), "OTHER": "stays"}


def test_without_a_file_the_environment_is_as_it_is() -> None:
    assert environment({"A": "1"}) == {"A": "1"}


def test_the_files_values_join_the_environment_and_win(tmp_path: Path) -> None:
    found = environment(written(tmp_path / "secrets", '{"KEY": "value", "OTHER": "of the file"}'))
    assert found["KEY"] == "value"
    assert found["OTHER"] == "of the file"


@pytest.mark.parametrize(
    ("text", "mode", "fault"),
    [
        ('{"KEY": "s3cret-value"}', 0o644, "can be read by others"),
        ("s3cret-value", 0o600, "is not JSON"),
        ('["s3cret-value"]', 0o600, "no JSON object"),
        ('{"KEY": 17}', 0o600, "no JSON object"),
    ],
)
def test_a_bad_file_is_refused_without_showing_what_it_holds(
    tmp_path: Path, text: str, mode: int, fault: str
) -> None:
    with pytest.raises(XpError, match=fault) as caught:
        environment(written(tmp_path / "secrets", text, mode))
    assert caught.value.code is ExitCode.SECRET
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_a_missing_secret(tmp_path: Path) -> None:
    with pytest.raises(XpError, match="cannot be read") as caught:
        environment({VARIABLE: str(tmp_path / "gone")})
    assert caught.value.code is ExitCode.SECRET


def test_the_file_of_a_launcher_is_the_owners_alone_and_a_killed_writer_leaves_no_trap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    context = Context("r", 1, tmp_path / "outputs", "runs/r/attempt_1")
    assert write(context, "train", {}) is None
    for stage in ("train", "evaluate", "train"):
        file = write(context, stage, {"KEY": stage})
        assert file is not None
        assert json.loads(file.read_text()) == {"KEY": stage}
        modes = [place.stat().st_mode & 0o777 for place in (file, file.parent)]
        assert modes == [0o600, 0o700]
        file.with_suffix(".part").write_text("half")
    with pytest.raises(XpError, match="below the outputs") as caught:
        write(replace(context, outputs=tmp_path), "train", {"KEY": "x"})
    assert caught.value.code is ExitCode.RESOURCE
