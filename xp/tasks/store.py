"""The content-addressed store of task sets: finds sets, verifies them, and refuses damaged ones with a reason.

A set is the directory `<store>/<request key>/`, which appears in one rename with its table and manifest complete.
During a build there are also `<key>.work/` (fetched tasks) and `<key>.lock`. A damaged set is moved to
`<key>.corrupt-<n>`. The lengths of prompts for each model are in `<key>.tokens/` (`token_counts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.lib.digest import file_digest
from xp.tasks.config import Purpose
from xp.tasks.manifest import MANIFEST, TABLE, Manifest, read_manifest
from xp.tasks.request import key_of
from xp.tasks.row import TaskRow, read_rows


@dataclass(frozen=True)
class TaskSet:
    """A verified set."""

    path: Path
    manifest: Manifest

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def table(self) -> Path:
        return self.path / TABLE

    def rows(self, purpose: Purpose | str | None = None) -> Iterator[TaskRow]:
        return read_rows(self.table, purpose)

    def num_tasks(self, purpose: Purpose | str) -> int:
        return sum(
            purposes[purpose].tasks
            for purposes in self.manifest.counts.values()
            if purpose in purposes
        )


class BrokenSet(Exception):
    """A directory of the store is not a valid set; the message says why."""


def prove(path: Path) -> TaskSet:
    """Verifies all hashes of the set at `path`; raises BrokenSet, or FileNotFoundError if there is no set."""
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        raise BrokenSet(f"it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise BrokenSet(f"{MANIFEST} cannot be read: {error}") from error
    if manifest.key != path.name or key_of(manifest.request) != manifest.key:
        raise BrokenSet(f"it is the set {manifest.key}, in a directory of another name")
    for name, digest in {TABLE: "", **manifest.files}.items():
        file = path / Path(name).name
        if not file.is_file():
            raise BrokenSet(f"{name} is missing")
        if file_digest(file) != digest:
            raise BrokenSet(f"{name} does not match its sha256")
    return TaskSet(path, manifest)


def open_verified(path: Path) -> TaskSet:
    """The verified set at `path`; raises XpError(TASKS) if it is missing or damaged."""
    try:
        return prove(path)
    except FileNotFoundError:
        fault = f"there is no task set at {path}"
    except BrokenSet as error:
        fault = f"the task set {path} is damaged: {error}"
    raise XpError(
        f"{fault}\nrun `python -m xp prepare` with the same spec to build it", ExitCode.TASKS
    )


@contextmanager
def writing_below(path: Path) -> Iterator[None]:
    """Context manager: converts OSError to an XpError that names the path."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        file = error.filename or path
        raise XpError(
            f"cannot write the task set: {reason}: {file}\n"
            f"free some space or correct the permissions below {path}, then run the same command again; "
            "fetched tasks are kept",
            ExitCode.RESOURCE,
        ) from error
