"""The Python that has the packages; `make test-environments` makes it and names it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "ENVIRONMENTS_PYTHON"
INSPECT_VARIABLE = "INSPECT_PYTHON"
ROOT = Path(__file__).resolve().parents[2]


def python() -> str:
    """Its whole path; the test is skipped where there is none."""
    given = os.environ.get(VARIABLE)
    if given is None:
        pytest.skip(
            f"needs {VARIABLE}=a Python with reasoning-gym and verifiers: make test-environments"
        )
    return os.path.abspath(given)


def inspect_python() -> str:
    """Whole path of the Python with inspect_ai; the test is skipped where there is none."""
    given = os.environ.get(INSPECT_VARIABLE)
    if given is None:
        pytest.skip(f"needs {INSPECT_VARIABLE}=a Python with inspect_ai: make test-environments")
    return os.path.abspath(given)


def told(program: str, given: Any, interpreter: str | None = None) -> Any:
    """Result of a program in that Python: it reads `given` as JSON and prints JSON."""
    done = subprocess.run(
        [interpreter or python(), "-c", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=800,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/tests/environments/packages"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
