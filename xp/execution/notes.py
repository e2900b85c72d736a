"""Tags and a note that a user gives to a run or an evaluation: `notes.json` in its directory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xp.errors import XpError
from xp.execution.run_directory import resource_errors
from xp.lib.atomic import write_atomically
from xp.lib.codec import JsonFile
from xp.lib.reading import config_of

FILE: Final = "notes.json"
MAX_NOTE: Final = 1000
"""Largest number of characters of a note."""
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+-]{0,59}")


@dataclass(frozen=True)
class Notes(JsonFile):
    """A user's tags and note of a run."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(directory: Path) -> Notes:
    """The notes in a directory, empty ones if there are none; raises XpError(RUN_DIR) for another file."""
    file = directory / FILE
    if not os.path.lexists(file):
        return Notes()
    return config_of(
        file, Notes.from_json, what="a file of tags and a note (`runs tag`)", below=directory
    )


def listed_notes(directory: Path) -> Notes:
    """The notes for a listing: a damaged file hides no run, and its fault is the note."""
    try:
        return read_notes(directory)
    except XpError as error:
        return Notes(note=str(error))


def change_notes(directory: Path, tags: Sequence[str], *, removes: bool, note: str | None) -> Notes:
    """Adds or removes tags, replaces the note, and returns the result.

    Args:
        directory: directory of a run or an evaluation.
        tags: the tags.
        removes: whether these tags are removed.
        note: new note, empty for none. None means that it stays.

    Raises:
        XpError: CONFIG for an illegal tag or a long note, or a tag to remove that is not there; RESOURCE if the file
            cannot be written.
    """
    known = read_notes(directory)
    for tag in tags:
        if removes and tag not in known.tags:
            tags_there = " ".join(known.tags) or "none"
            raise XpError(f"{directory.name} has no tag {tag!r}; its tags: {tags_there}")
        if not removes and not _TAG.fullmatch(tag):
            raise XpError(
                f"{tag!r}: a tag begins with a letter or a digit and has at most 60 letters, digits and _ . : / + -;"
                " a sentence is a note: --note 'TEXT'"
            )
    if note is not None and len(note) > MAX_NOTE:
        raise XpError(f"--note: at most {MAX_NOTE:,} characters; got {len(note):,}")
    left = (
        [tag for tag in known.tags if tag not in tags]
        if removes
        else dict.fromkeys((*known.tags, *tags))
    )
    changed = Notes(tuple(left), known.note if note is None else note)
    if changed != known:
        with resource_errors(directory):
            write_atomically(directory / FILE, changed.to_json())
    return changed
