"""Names the Python that a trainer's lock file describes, and finds it where it is installed. Standard library only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

LOCK, AFTER_LOCK = "requirements.lock", "flash-attention.txt"
WHOLE = ".whole"
"""File that is written last into an environment; an environment without it is unfinished."""

_PACKAGE = Path(__file__).resolve().parent
LOCKS = (_PACKAGE if (_PACKAGE / "runtimes").is_dir() else _PACKAGE.parent) / "runtimes"


@dataclass(frozen=True)
class RuntimeLock:
    """One folder of `runtimes/`."""

    name: str
    directory: Path
    has_flash: bool = True
    """True if FlashAttention is installed too, where the folder has a requirement file for it."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Requirement files in the order in which they are installed."""
        names = (LOCK, AFTER_LOCK) if self.has_flash else (LOCK,)
        return tuple(file for name in names if (file := self.directory / name).is_file())

    @property
    def key(self) -> str:
        """`<name>-<digest of the files>`: the environment's directory, the same on every machine."""
        content = b"".join(file.read_bytes() for file in self.files)
        return f"{self.name}-{hashlib.sha256(content).hexdigest()[:12]}"

    def versions(self) -> dict[str, str]:
        """Package (normalised name) -> version."""
        return versions_in(self.files)


def versions_in(files: Sequence[Path]) -> dict[str, str]:
    """Package (as the index spells it) -> version, of lines `name==version` and `name @ address-of-a-wheel`."""
    found = {}
    for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
        if pinned := re.match(r"([a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==([^ ;\\]+)", line):
            found[pinned[1]] = pinned[2]
        elif wheel := re.match(r"([a-z0-9][a-z0-9._-]*) @ \S*/[^/-]+-([^/+-]+)[^/]*\.whl", line):
            found[wheel[1]] = wheel[2]
    return found


def locks() -> dict[str, RuntimeLock]:
    """Name -> lock, for every folder that has one."""
    found = sorted(LOCKS.glob(f"*/{LOCK}"))
    return {file.parent.name: RuntimeLock(file.parent.name, file.parent) for file in found}


def lock_with(key: str) -> RuntimeLock | None:
    """The lock of a key; None: the key is from another version."""
    variants = (replace(lock, has_flash=flash) for lock in locks().values() for flash in (True, False))
    return next((lock for lock in variants if lock.key == key), None)


def smallest_with(modules: Sequence[str]) -> RuntimeLock | None:
    """The lock with the fewest packages that has all of these modules; None where no lock has them.

    FlashAttention, which computes on GPUs alone, is left out where it is not among the modules.
    """
    wanted = {module.partition(".")[0].replace("_", "-") for module in modules}
    variants = [replace(lock, has_flash="flash-attn" in wanted) for lock in locks().values()]
    found = [lock for lock in variants if wanted <= lock.versions().keys()]
    return min(found, key=lambda lock: len(lock.versions()), default=None)


def added_to_image() -> list[str]:
    """Requirements of xp's that an image with the trainer's checkouts lacks."""
    lines = (LOCKS / "slime" / "added.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def directory() -> Path:
    """Parent directory of the installed environments; on a cluster, the nodes see the same home directory."""
    return Path.home() / ".xp" / "runtimes"


def installed(key: str) -> Path | None:
    """The interpreter of an installed environment; None where there is none, or an unfinished one."""
    place = directory() / key
    return place / "bin" / "python" if (place / WHOLE).is_file() else None
