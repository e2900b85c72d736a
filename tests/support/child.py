"""Programs of tests in processes of their own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def ended(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    timeout: float | None = None,
    given: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and read what it says."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=check,
        timeout=timeout,
        input=given,
    )


def json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]
