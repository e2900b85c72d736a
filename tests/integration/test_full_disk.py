"""A real file system that is full in mid-run: an exit code of its own, one sentence, and a record that is closed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import Supervisor
from xp.errors import ExitCode
from xp.execution.record import read_record

pytestmark = pytest.mark.integration

CHECKPOINT = """
import sys
from xp.worker.program import run_stage

def main(argv):
    import numpy
    from safetensors.numpy import save_file
    model = {"weight": numpy.zeros(32 * 2**20 // 4, "float32")}
    save_file(model, "checkpoint.safetensors")

sys.exit(run_stage(main, []))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """16 MiB, which hold xp's own copy of itself and no checkpoint of 32."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a file system of its own can be mounted by root only")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_checkpoint_that_does_not_fit_ends_with_74(small_disk: Path) -> None:
    ended = Supervisor(small_disk, [CHECKPOINT]).end()
    assert ended.returncode == ExitCode.RESOURCE, ended.stdout
    assert "is full; make room" in ended.stdout or "No space left" in ended.stdout
    assert "Traceback" not in ended.stdout
    record = read_record(small_disk / "runs/run")
    assert str(record.status) == "failed"
    assert record.attempts[-1].ended is not None


def test_a_full_disk_while_code_is_copied_ends_with_one_line(small_disk: Path) -> None:
    (small_disk / "others").write_bytes(bytes(14 * 2**20))
    ended = Supervisor(small_disk, ["pass"]).end()
    assert ended.returncode == ExitCode.RESOURCE, ended.stdout
    (line,) = [line for line in ended.stdout.splitlines() if "No space left" in line]
    assert "files could not be copied" in line
    assert "make room there, or set outputs=DIR" in line
    assert len(ended.stdout) < 1000
