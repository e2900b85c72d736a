"""Secrets that reach a process by a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from xp.errors import ExitCode, XpError
from xp.lib.secrets.environment import SECRETS_FILE, with_secrets_file


def written(path: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path.write_text(text)
    path.chmod(mode)
    return {SECRETS_FILE: str(path), "OTHER": "stays"}


def test_without_a_file_the_environment_is_as_it_is() -> None:
    assert with_secrets_file({"A": "1"}) == {"A": "1"}


def test_the_files_values_join_the_environment_and_win(tmp_path: Path) -> None:
    found = with_secrets_file(
        written(tmp_path / "secrets", '{"KEY": "value", "OTHER": "of the file"}')
    )
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
        with_secrets_file(written(tmp_path / "secrets", text, mode))
    assert caught.value.code is ExitCode.SECRET
    assert "s3cret" not in str(caught.value)


def test_a_missing_file_is_a_missing_secret(tmp_path: Path) -> None:
    with pytest.raises(XpError, match="cannot be read") as caught:
        with_secrets_file({SECRETS_FILE: str(tmp_path / "gone")})
    assert caught.value.code is ExitCode.SECRET
