"""Names the checkouts that a trainer consists of, and finds those that `install` made. Standard library only."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from xp.runtimes import LOCKS, WHOLE, added_to_image, directory

FILE = "checkouts.toml"
PLACES = "checkouts.json"
"""File beside the checkouts, written by `install`: variable -> folder."""


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
    extras: Mapping[str, str] = field(default_factory=dict)
    """Strategy -> extra of the checkout's own uv.lock; empty where no extra is used."""


@dataclass(frozen=True)
class Checkouts:
    """All checkouts that one `install` makes."""

    name: str
    checkouts: tuple[Checkout, ...]
    extra: str | None = None
    """Extra of the first checkout's uv.lock that is installed into its `.venv`."""
    added: tuple[str, ...] = ()
    """Requirements of xp's that are installed there too."""

    @property
    def key(self) -> str:
        """`<name>-<digest>`: the directory of the checkouts, the same on every machine."""
        content = json.dumps([asdict(one) for one in self.checkouts] + [self.extra, *self.added], sort_keys=True)
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def checkouts_of(commits: Mapping[str, str], project: str | None, strategy: str) -> Checkouts | None:
    """The checkouts of a backend.

    Args:
        commits: variable -> commit (`backend.commits`).
        project: variable of the checkout that holds the trainer (`backend.runtime.project_env`).
        strategy: `backend.parallel.strategy`, which chooses the extra.

    Returns:
        None where `runtimes/` has no addresses for these variables.
    """
    if project is None or project not in commits:
        return None
    for file in sorted(LOCKS.glob(f"*/{FILE}")):
        rows = tomllib.loads(file.read_text(encoding="utf-8"))["checkout"]
        if {row["variable"] for row in rows} == commits.keys():
            found = tuple(_checkout(row, commits) for row in rows)
            extra = next((one.extras[strategy] for one in found if strategy in one.extras), None)
            return Checkouts(file.parent.name, found, extra, tuple(added_to_image()))
    return None


def _checkout(row: Mapping[str, object], commits: Mapping[str, str]) -> Checkout:
    variable, patches, extras = str(row["variable"]), row.get("patches", ()), row.get("extras", {})
    assert isinstance(patches, Sequence)
    assert isinstance(extras, Mapping)
    return Checkout(variable, str(row["folder"]), str(row["address"]), commits[variable], tuple(patches), dict(extras))


def installed_checkouts(key: str | None) -> dict[str, str]:
    """Variable -> directory of each checkout that `install` made under a key; empty where it made none."""
    place = directory() / (key or "none")
    if key is None or not (place / WHOLE).is_file():
        return {}
    folders = json.loads((place / PLACES).read_text(encoding="utf-8"))
    return {str(variable): str(place / folder) for variable, folder in folders.items()}
