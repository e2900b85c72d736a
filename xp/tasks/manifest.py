"""The manifest of a task set: the request, the result, and hashes of the files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.lib.codec import from_value
from xp.lib.digest import digest_of
from xp.lib.reading import read_text
from xp.tasks.held_out import HeldOutRecord

MANIFEST = "manifest.json"
TABLE = "tasks.parquet"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TaskCount:
    """Numbers of tasks of one environment and purpose, by result."""

    tasks: int = 0
    failed: int = 0
    overlapping: int = 0
    """Tasks that were excluded from training because their prompt or their description is that of a held-out task."""
    prompt_characters: int = 0
    """Number of characters of all tasks' messages."""
    distinct_prompts: int = 0


@dataclass(frozen=True)
class Failure:
    """A task that could not be fetched."""

    task_id: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """Description of a set, without times and paths, so that equal content gives equal bytes."""

    key: str
    request: Mapping[str, Any]
    environments: Mapping[str, str]
    """Member -> version that its provider reported."""
    content_digest: str
    """sha256 of the rows, independent of Parquet's encoding."""
    counts: Mapping[str, Mapping[str, TaskCount]]
    """Member -> purpose -> count."""
    failures: tuple[Failure, ...]
    notes: tuple[str, ...]
    files: Mapping[str, str]
    """File name -> sha256."""
    held_out: Mapping[str, HeldOutRecord]
    """Member -> rule of its held-out tasks, with numbers."""
    schema_version: int = field(default=SCHEMA_VERSION)

    def to_json(self) -> str:
        value = asdict(self)
        return (
            json.dumps(value | {"manifest_digest": digest_of(value)}, indent=2, sort_keys=True)
            + "\n"
        )

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Reads the text that `to_json` wrote; raises ValueError or KeyError for another text."""
        value = json.loads(text)
        if value["schema_version"] != SCHEMA_VERSION:
            raise ValueError(
                f"manifest schema {value['schema_version']}, expected {SCHEMA_VERSION}"
            )
        claimed = value.pop("manifest_digest")
        if digest_of(value) != claimed:
            raise ValueError("the manifest does not match its own digest")
        return from_value(Manifest, value)

    def missing_fraction(self) -> float:
        """Largest share of failed tasks over the environments."""
        counts = [purposes.values() for purposes in self.counts.values()]
        shares = (
            sum(shard.failed for shard in part)
            / max(1, sum(shard.failed + shard.tasks for shard in part))
            for part in counts
        )
        return max(shares, default=0.0)


def read_manifest(directory: Path) -> Manifest:
    """Reads a set's manifest; raises OSError if there is none, ValueError if it is damaged."""
    file = directory / MANIFEST
    if not file.exists():
        raise FileNotFoundError(file)
    try:
        return Manifest.from_json(read_text(file, ExitCode.TASKS))
    except XpError as error:
        raise ValueError(str(error)) from None
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a manifest: {error!r}") from error
