"""`make locks`, `make check-locks`: resolves runtimes/*/requirements.in with uv, for each Python of a lock."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from xp.cli.install import uv
from xp.planning.runtimes import LOCK, RuntimeLock, locks, versions_in

PLATFORM = "x86_64-manylinux_2_28"


def main(argv: Sequence[str]) -> int:
    """Rewrites every lock (`--write`), or compares each with a new resolution; returns the number of differences."""
    faults = [
        line
        for lock in locks().values()
        for line in (_write(lock) if "--write" in argv else _check(lock))
    ]
    print("\n".join(faults) or "no differences")
    return min(len(faults), 1)


def _write(lock: RuntimeLock) -> list[str]:
    """Makes a lock for the oldest Python, and checks that it is complete on the others."""
    _compile(lock, min(lock.pythons), lock.directory / LOCK, ["--generate-hashes", "--upgrade"])
    return _check(lock)


def _check(lock: RuntimeLock) -> list[str]:
    """Checks that the committed lock is a solution of its sources on every Python and has no other packages."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for python in lock.pythons:
            resolved = Path(directory) / f"{python}.txt"
            _compile(lock, python, resolved, ["--constraints", str(lock.directory / LOCK)])
            wanted = versions_in([resolved])
            there = versions_in([lock.directory / LOCK])
            for name in sorted({*wanted, *there}):
                if wanted.get(name) != there.get(name):
                    found.append(
                        f"{lock.name}, Python {python}: {name}: lock {there.get(name)}, resolved {wanted.get(name)}"
                    )
    return found


def _compile(lock: RuntimeLock, python: str, target: Path, more: Sequence[str]) -> None:
    overrides = lock.directory / "overrides.txt"
    command = [
        *uv(),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-python-downloads",
        "--python-version",
        python,
    ]
    command += ["--python-platform", PLATFORM, "--output-file", str(target), *more]
    if overrides.is_file():
        command += ["--overrides", str(overrides)]
    subprocess.run([*command, "requirements.in"], check=True, cwd=lock.directory)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
