"""Makes a virtual environment: torch in the build that this machine needs, then the packages of a lock.

    python tools/make_venv.py .venv torch==2.13.0 [--lock requirements/all.lock] [--index-url URL]

It runs before anything is installed: standard library only. What is there already stays.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_S = 5.0


def main(argv: Sequence[str]) -> int:
    """Make the environment; gives back the exit code of the step that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("torch", help="requirement")
    parser.add_argument("--lock", type=Path, help="every package with its hashes")
    parser.add_argument("--index-url", help="of torch; default: by this machine's accelerator")
    options = parser.parse_args(argv)
    python = options.venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", options.venv], check=True)
    index = options.index_url or torch_index(
        platform.system() == "Linux" and not has_nvidia(), answers
    )
    try:
        install_torch(python, options.torch, index)
        if options.lock is not None:
            install_lock(python, options.lock)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


def has_nvidia() -> bool:
    """Whether this machine has an NVIDIA GPU with a driver."""
    if any(re.fullmatch(r"nvidia\d+", device.name) for device in Path("/dev").glob("nvidia*")):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def answers(index: str) -> bool:
    """Whether an index of packages can be reached and has torch."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=ANSWER_S) as response:
            return bool(response.status == 200)
    except (OSError, ValueError):
        return False


def torch_index(needs_cpu_build: bool, answers: Callable[[str], bool]) -> str | None:
    """Index that torch comes from; None: the one that pip is configured with."""
    if not needs_cpu_build:
        return None
    if answers(CPU_INDEX):
        return CPU_INDEX
    print(
        f"No NVIDIA GPU is here, and {CPU_INDEX} does not answer: torch comes from pip's own index.\n"
        "A CUDA build takes 6 GB; TORCH_INDEX_URL=... names another index of CPU builds.",
        flush=True,
    )
    return None


def install_torch(python: Path, requirement: str, index: str | None) -> None:
    """First and alone, so that no other requirement brings another build.

    Only pip is used where no index is named: its configuration may know a CPU build that uv does not see.
    """
    uv = shutil.which("uv")
    if index is not None and uv is not None:
        command = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "--index-url",
            index,
            requirement,
        ]
        if subprocess.run(command, check=False).returncode == 0:
            return
        print("uv could not install torch; pip tries.", flush=True)
    pip_install(python, *(("--index-url", index) if index is not None else ()), requirement)


def install_lock(python: Path, lock: Path) -> None:
    """Every package by its hashes: with uv, which the lock itself brings where it is missing, else with pip."""
    whole = ["--no-deps", "--require-hashes", "--requirement", str(lock)]
    uv = shutil.which("uv") or locked_uv(python, lock)
    if uv is not None:
        command = [uv, "pip", "install", "--quiet", "--python", str(python), *whole]
        if subprocess.run(command, check=False).returncode == 0:
            return
        print("uv could not install the lock; pip tries.", flush=True)
    pip_install(python, *whole)


def locked_uv(python: Path, lock: Path) -> str | None:
    """The uv of a lock, installed by its hashes; None where the lock has none."""
    line = re.search(r"^uv==(?:.*\\\n)*.*$", lock.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory) / "uv.lock"
        own.write_text(line[0] + "\n", encoding="utf-8")
        pip_install(python, "--no-deps", "--require-hashes", "--requirement", str(own))
    return str(python.with_name("uv"))


def pip_install(python: Path, *arguments: str) -> None:
    """Modules are compiled when they are imported, not all of them here: that takes longer than their download."""
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", *arguments], check=True
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
