"""Bytes that a logit takes at the peak of a trainer's update, by its own code on the CPU; constants of the planner.

Needs .venv-skyrl for SkyRL, .venv-slime, SLIME_PATH and MEGATRON_PATH for Slime; what is not there is named and left
out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.benchmarks.memory_points import HIDDEN, Point

ROOT = Path(__file__).parents[2]


def main() -> None:
    for backend, (python, environ) in pythons().items():
        if not Path(python).exists() or None in environ.values():
            print(f"{backend}: not measured: {python} or a checkout is not here")
            continue
        print("\n".join(lines(backend, points_of(backend, python, environ))), flush=True)


def pythons() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Backend -> its interpreter, and variables that it needs (None: not set here)."""
    slime = os.environ.get("SLIME_PATH")
    megatron = os.environ.get("MEGATRON_PATH")
    stubs = ROOT / "tests" / "trainers" / "slime_stubs"
    of_slime = {
        "SLIME_PATH": slime,
        "MEGATRON_PATH": megatron,
        "PYTHONPATH": f"{stubs}:{megatron}:{slime}",
        "SLIME_ACCELERATOR": "none-here",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    return {
        "trl": (sys.executable, {}),
        "skyrl": (str(ROOT / ".venv-skyrl/bin/python"), {}),
        "slime": (str(ROOT / ".venv-slime/bin/python"), of_slime),
    }


def points_of(backend: str, python: str, environ: Mapping[str, str]) -> dict[str, list[Point]]:
    """Path of the loss -> peaks over the grid."""
    command = [python, "-W", "ignore", "-m", "tools.benchmarks.memory_points", backend]
    done = subprocess.run(
        command, check=False, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True
    )
    line = next((one for one in done.stdout.splitlines() if one.startswith("POINTS ")), None)
    if line is None:
        raise SystemExit(f"{backend} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, list[Point]] = json.loads(line.removeprefix("POINTS "))
    return found


def lines(backend: str, paths: Mapping[str, Sequence[Point]]) -> list[str]:
    """One line a path: the slopes."""
    found = []
    for path, points in paths.items():
        logit, token, head = slopes(points)
        found.append(
            f"{backend}, {path}: {logit:.2f} bytes a logit, {token / 1024:.1f} KiB a token beside,"
            f" {head:.2f} bytes a parameter of the head"
        )
    return found


def slopes(points: Sequence[Point]) -> tuple[float, float, float]:
    """Bytes per logit, per token and per parameter of the head, by least squares over the grid.

    The peak is taken to be logit x tokens x vocabulary + token x tokens + head x vocabulary x width.
    """
    import numpy as np

    rows = [
        [point["tokens"] * point["vocabulary"], point["tokens"], point["vocabulary"] * HIDDEN]
        for point in points
    ]
    found = np.linalg.lstsq(
        np.array(rows, dtype=float), np.array([point["peak"] for point in points]), rcond=None
    )[0]
    return float(found[0]), float(found[1]), float(found[2])


if __name__ == "__main__":
    main()
