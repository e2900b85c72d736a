"""Ray clusters of a job: their home directory and processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest


def of_job(home: Path) -> list[psutil.Process]:
    """Processes of the cluster whose token lies in this home."""
    found = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.environ().get("RAY_AUTH_TOKEN_PATH", "").startswith(str(home)):
                found.append(one)
    return found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("MY_KEY", "XPCANARY of a cluster")
    return made
