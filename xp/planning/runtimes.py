"""Names the Python that a trainer's lock file describes, and finds it where it is installed. Standard library only."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

PYTHONS = ("3.12", "3.11")
"""Python versions that the locks are resolved for, the preferred one first."""
LOCK = "requirements.lock"
AFTER_LOCK = "flash-attention.txt"
WHOLE = ".whole"
"""File that is written last into an environment; an environment without it is unfinished."""

_PACKAGE = Path(__file__).resolve().parents[1]
LOCKS = (_PACKAGE if (_PACKAGE / "runtimes").is_dir() else _PACKAGE.parent) / "runtimes"
FILE = "checkouts.toml"
PLACES = "checkouts.json"
"""File beside the checkouts, written by `install`: variable -> folder."""


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
        files = (self.directory / name for name in names)
        return tuple(file for file in files if file.is_file())

    @property
    def pythons(self) -> tuple[str, ...]:
        """Python versions that the lock is for, the preferred one first; SkyRL requires 3.12."""
        if self.name == "skyrl":
            return PYTHONS[:1]
        return PYTHONS

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
    versions = {}
    for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
        pinned = re.match(r"([a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==([^ ;\\]+)", line)
        if pinned:
            versions[pinned[1]] = pinned[2]
        elif wheel := re.match(r"([a-z0-9][a-z0-9._-]*) @ \S*/[^/-]+-([^/+%-]+)[^/]*\.whl", line):
            versions[wheel[1]] = wheel[2]
    return versions


def locks() -> dict[str, RuntimeLock]:
    """Name -> lock, for every folder that has one."""
    files = sorted(LOCKS.glob(f"*/{LOCK}"))
    return {file.parent.name: RuntimeLock(file.parent.name, file.parent) for file in files}


def lock_with(key: str) -> RuntimeLock | None:
    """The lock of a key. None means that the key is from another version."""
    variants = (
        replace(lock, has_flash=flash) for lock in locks().values() for flash in (True, False)
    )
    return next((lock for lock in variants if lock.key == key), None)


def smallest_with(modules: Sequence[str]) -> RuntimeLock | None:
    """The lock with the fewest packages that has all of these modules; None where no lock has them.

    FlashAttention, which computes on GPUs alone, is left out where it is not among the modules.
    """
    packages = {module.partition(".")[0].replace("_", "-") for module in modules}
    variants = [replace(lock, has_flash="flash-attn" in packages) for lock in locks().values()]
    fitting = [lock for lock in variants if packages <= lock.versions().keys()]
    return min(fitting, key=lambda lock: len(lock.versions()), default=None)


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
    if (place / WHOLE).is_file():
        return place / "bin" / "python"
    return None


@dataclass(frozen=True)
class Checkout:
    """One repository at one commit."""

    variable: str
    """Environment variable with the checkout's path (`SLIME_PATH`)."""
    folder: str
    address: str
    commit: str
    patches: tuple[str, ...] = ()
    """Files to apply, relative to the parent of all folders."""


@dataclass(frozen=True)
class Checkouts:
    """All checkouts that one `install` makes."""

    name: str
    checkouts: tuple[Checkout, ...]

    @property
    def key(self) -> str:
        """`<name>-<digest>`: the directory of the checkouts, the same on every machine."""
        content = json.dumps([asdict(checkout) for checkout in self.checkouts], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def checkouts_of(commits: Mapping[str, str], project: str | None) -> Checkouts | None:
    """The checkouts of a backend.

    Args:
        commits: variable -> commit (`backend.commits`).
        project: variable of the checkout that holds the trainer (`backend.runtime.project_env`).

    Returns:
        None where `runtimes/` has no addresses for these variables.
    """
    if project is None or project not in commits:
        return None
    for file in sorted(LOCKS.glob(f"*/{FILE}")):
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["checkout"]
        if {entry["variable"] for entry in entries} == commits.keys():
            checkouts = [
                Checkout(
                    entry["variable"],
                    entry["folder"],
                    entry["address"],
                    commits[entry["variable"]],
                    tuple(entry.get("patches", ())),
                )
                for entry in entries
            ]
            return Checkouts(file.parent.name, tuple(checkouts))
    return None


def installed_checkouts(key: str | None) -> dict[str, str]:
    """Variable -> directory of each checkout that `install` made under a key; empty where it made none."""
    place = directory() / (key or "none")
    if key is None or not (place / WHOLE).is_file():
        return {}
    folders = json.loads((place / PLACES).read_text(encoding="utf-8"))
    return {str(variable): str(place / folder) for variable, folder in folders.items()}
