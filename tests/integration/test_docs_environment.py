"""The environment of docs/environments.md is served and played as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.slow
def test_the_documented_class_is_served_and_checked_by_the_documented_command(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/environments.md").read_text()
    (example,) = re.findall(
        r"```python\n(# my_env\.py\nfrom openreward.*?)```", page, flags=re.DOTALL
    )
    (line,) = re.findall(
        r"^    python -m xp (env check my_env:GuessNumber)", page, flags=re.MULTILINE
    )
    (tmp_path / "my_env.py").write_text(example)
    command = [sys.executable, "-m", "xp", *line.split(), "tasks=2", "--seconds", "200"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    assert "no problems found" in ended.stdout
    assert "80 in train, 19 in test" in ended.stdout
