"""The processes of `make test`: files in forks, whose reports are those of one process; a crash fails one test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = """
import os
import pytest

@pytest.fixture(scope="module")
def process():
    return os.getpid()

def test_first(process, tmp_path):
    print("first", tmp_path)

def test_fails():
    print("what it printed")
    assert 1 == 2

def test_last(process):
    assert process == os.getpid()
"""
CRASHES = """
import os

def test_crashes():
    os._exit(3)

def test_after():
    pass
"""


def test_tests_of_files_run_in_forks_and_a_crash_fails_its_own_alone(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in {"one": FILE, "two": FILE, "crashes": CRASHES}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    words = ("-p", "tests.support.forks", "--forks", "2", "--preload", "json", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 1
    assert "3 failed, 5 passed" in done.stdout
    assert done.stdout.count("what it printed") >= 2
    assert "its process ended with code 3" in done.stdout
