"""The manifest of a task set: what was asked, what came of it, and the hashes that prove it whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xp.codec import from_value
from xp.digest import digest_of
from xp.errors import ExitCode, XpError
from xp.reading import is_count, text_of
from xp.tasks.held_out import HeldOutRecord

MANIFEST = "manifest.json"
TABLE = "tasks.parquet"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Count:
    """Numbers of tasks of one environment and purpose, by their fate."""

    tasks: int = 0
    failed: int = 0
    overlapping: int = 0
    """Left out of training, because a held-out task has the same hash."""
    prompt_characters: int = 0
    """Summed over the tasks' messages."""
    distinct_prompts: int = 0

    @property
    def selected(self) -> int:
        return self.tasks + self.failed


@dataclass(frozen=True)
class Failure:
    """A task that could not be fetched."""

    task_id: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """Holds no time and no path, so that the same content gives the same bytes."""

    key: str
    request: Mapping[str, Any]
    environments: Mapping[str, str]
    """Member -> the version that its provider reported."""
    content_digest: str
    """sha256 over the rows, independent of how Parquet stores them."""
    counts: Mapping[str, Mapping[str, Count]]
    """Member -> purpose -> count."""
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    """File name -> sha256."""
    held_out: Mapping[str, HeldOutRecord] = field(default_factory=dict)
    """Member -> which rule decided what is held out, and its figures; empty in sets made before it was on record."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        value = asdict(self)
        if not self.held_out:
            del value["held_out"]
        return json.dumps(value | {"manifest_digest": digest_of(value)}, indent=2, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote; raises ValueError or KeyError on anything else."""
        value = json.loads(text)
        if value["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"manifest schema {value['schema_version']}, expected {SCHEMA_VERSION}")
        claimed = value.pop("manifest_digest")
        if digest_of(value) != claimed:
            raise ValueError("the manifest does not match its own digest")
        manifest = from_value(Manifest, value)
        _check_counts(manifest)
        return manifest

    def missing_fraction(self) -> float:
        """The largest share of failed tasks of any environment."""
        return max(missing_fractions(self.counts).values(), default=0.0)


def _check_counts(manifest: Manifest) -> None:
    """Raise ValueError for a count that is not a number of tasks: a digest proves only who wrote it."""
    counts = [number for one in manifest.counts.values() for count in one.values() for number in asdict(count).values()]
    for one in manifest.held_out.values():
        counts += [*one.sizes.values(), one.num_held_out, one.num_train, one.num_trained_on]
    if not all(map(is_count, counts)):
        raise ValueError("a count is not a number of tasks")


def missing_fractions(counts: Mapping[str, Mapping[str, Count]]) -> dict[str, float]:
    shares = {}
    for member, purposes in counts.items():
        selected = sum(count.selected for count in purposes.values())
        shares[member] = sum(count.failed for count in purposes.values()) / max(selected, 1)
    return shares


def read_manifest(directory: Path) -> Manifest:
    """Raises OSError where there is none, ValueError where it is not whole."""
    file = directory / MANIFEST
    if not file.exists():
        raise FileNotFoundError(file)
    try:
        text = text_of(file, ExitCode.TASKS)
        manifest = Manifest.from_json(text)
    except XpError as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a manifest: {error!r}") from error
    if manifest.to_json() != text:
        raise ValueError("the manifest was written by something else")
    return manifest
