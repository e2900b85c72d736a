"""Runs a program that plants faults in a trainer's update, and reads how far each is from the papers' update."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def differences(program: str, folder: Path) -> dict[str, float]:
    """Fault -> relative difference of its update, by `python -m PROGRAM FILE` in this environment."""
    file = folder / "seen.json"
    command = [sys.executable, "-W", "ignore", "-m", program, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, float] = json.loads(file.read_text())
    print(json.dumps(found, indent=1))
    return found
