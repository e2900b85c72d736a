"""Directories of temporary files end with their process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAKER = """
import sys
from pathlib import Path
from xp.lib.atomic import private_directory
print(private_directory("test", Path(sys.argv[1])), flush=True)
sys.stdin.readline()
"""


def test_a_directory_ends_with_its_process_and_only_its_user_opens_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    made = Path(process.stdout.readline().strip())
    assert made.parent == tmp_path
    assert made.stat().st_mode & 0o777 == 0o700
    process.communicate("\n")
    assert process.returncode == 0
    assert not list(tmp_path.iterdir())
