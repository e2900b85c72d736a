"""Measures the refusal of each file in tests/bad_configs.txt in a separate process: wall clock and CPU seconds."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

from tools.benchmarks import spent

TABLE = (Path(__file__).parents[2] / "tests/bad_configs.txt").read_text()
FILES = re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", TABLE, flags=re.MULTILINE | re.DOTALL)


def main() -> None:
    """Print the median and the slowest."""
    found = sorted((_seconds(text), name) for name, text in FILES)
    wall = [seconds[1] for seconds, _ in found]
    (cpu, _), name = found[-1]
    print(
        f"{len(FILES)} bad files: median {found[len(found) // 2][0][0]:.2f} s CPU, slowest {cpu:.2f} s CPU ({name})"
    )
    print(
        f"by the wall clock: median {sorted(wall)[len(wall) // 2]:.2f} s, slowest {max(wall):.2f} s (bar: 2 s)"
    )


def _seconds(text: str) -> tuple[float, float]:
    """CPU and wall-clock seconds of one refusal."""
    head = dict(re.findall(r"^# (run|at): (.*)$", text, flags=re.MULTILINE))
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / head["at"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        took = spent("plan", *shlex.split(head["run"]), "--config-dir", directory, cwd=directory)
    assert took.done.returncode == 2, text
    return took.cpu_s, took.wall_s
