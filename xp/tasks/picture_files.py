"""Files of pictures that rows name: their digests belong to a task set, which is not used after one was replaced.

The set's key has the rows alone, so that a plan reads no picture. The set itself has `pictures.json` with the sha256 of
each file by the path in the rows. Beside the set, `<key>.files.json` has the state of each file on this machine when
it was last read: a file of the same state is not read again.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Picture, Provider, RowProvider, Task
from xp.envs.pictures import PictureFault, digests_of, files_named, named, path_of, picture_data
from xp.envs.rows import folders_of, messages_of
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.reading import json_of
from xp.tasks.config import MemberConfig, PrepareConfig
from xp.tasks.selection import Block
from xp.tasks.shards import WorkDirectory

FILE: Final = "pictures.json"
STATES: Final = ".files.json"
SETTLED_S: Final = 2.0
"""Age from which a file's state is kept: a younger file may change again within one tick of its file system."""
MOST_NAMED: Final = 3
"""Largest number of files that a message names."""

Digests = Mapping[str, Mapping[str, str]]
"""Member -> path as the rows have it -> sha256."""


class PictureChanged(XpError):
    """A picture was replaced while its task was prepared."""


def may_name_pictures(config: PrepareConfig) -> bool:
    """Returns whether a member's rows are from a file, beside which there may be pictures."""
    return any(_folders(member) for member in config.members.values())


def _folders(member: MemberConfig) -> list[Path]:
    """Folders of a member's pictures; empty without model.images."""
    if member.env.images is None:
        return []
    return folders_of(member.env.rows)


def digests_of_rows(
    config: PrepareConfig,
    blocks: Sequence[Block],
    work: WorkDirectory,
    providers: Mapping[str, Provider],
) -> Digests:
    """The pictures that the rows of finished shards name, as their files are now.

    A grader that writes the prompt itself may leave pictures of its row out; they are left out here too.

    Raises:
        PictureChanged: a file is another one than when its task was fetched, maybe by an earlier command.
    """
    shown: dict[str, dict[str, str]] = {}
    for block in blocks:
        folders = _folders(config.members[block.env])
        provider = providers[block.env]
        if not folders or not isinstance(provider, RowProvider):
            continue
        now = cache(partial(_digest, folders=folders))
        of_member = shown.setdefault(block.env, {})
        for index, entry in work.read(block).items():
            digests = digests_of(entry.messages)
            for name in names_in(provider.row(Task(block.env, block.split, index))):
                digest = now(name)
                if digest in digests:
                    of_member[name] = digest
                elif _last_change_ns(_states(name, folders)) >= work.begun_ns():
                    raise PictureChanged(
                        f"env {block.env}: the picture {name} of task {block.task_id(index)} changed while the tasks were"
                        " prepared\nrun the same command again, which fetches them again",
                        ExitCode.TASKS,
                    )
    return {member: names for member, names in shown.items() if names}


def names_in(row: Mapping[str, Any]) -> list[str]:
    """The paths of a row's pictures, as they are written; raises ProtocolError as `messages_of` does."""
    names: list[str] = []

    def note(value: Any) -> Picture:
        path = path_of(value)
        if path is not None:
            names.append(path)
        return named(value)

    messages_of(row, note)
    return names


def pictures_text(digests: Digests) -> str:
    """Content of the set's file."""
    return json.dumps(digests, indent=1, sort_keys=True) + "\n"


def changed_pictures(directory: Path, config: PrepareConfig) -> list[str]:
    """Paths of the rows' pictures whose files are other ones than those of the set, or are not there any more.

    Reads the files whose size, times or inode changed since they were read last.

    Args:
        directory: directory of a verified set.
        config: its request.
    """
    file = directory / FILE
    if not file.is_file():
        return []
    digests = json_of(file, ExitCode.TASKS)
    states = _States(directory)
    changed = [
        name
        for member, names in digests.items()
        for name, digest in names.items()
        if states.digest(member, name, _folders(config.members[member])) != digest
    ]
    states.keep()
    return changed


def few(names: Sequence[str]) -> str:
    """The first names, for a message."""
    if len(names) <= MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"


class _States:
    """The states of a set's pictures on this machine, with their digests.

    Args:
        directory: directory of the set.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory.with_name(directory.name + STATES)
        self._known: dict[str, dict[str, dict[str, Any]]] = {}
        """Member -> path -> `state` and `sha256`."""
        self._is_new = False
        with suppress(OSError, ValueError, TypeError, AttributeError):  # or a file of another form
            self._known = _known_states(json.loads(self._file.read_bytes()))

    def digest(self, member: str, name: str, folders: Sequence[Path]) -> str | None:
        """sha256 of the file of a member's path now. None means that it is not there, or is refused."""
        state = _states(name, folders)
        if not state:
            return None
        of_member = self._known.setdefault(member, {})
        known = of_member.get(name)
        if known is not None and known["state"] == state:
            return str(known["sha256"])
        digest = _digest(name, folders)
        self._is_new = True
        of_member.pop(name, None)
        if digest is not None and time.time() - _last_change_ns(state) / 1e9 >= SETTLED_S:
            of_member[name] = {"state": state, "sha256": digest}
        return digest

    def keep(self) -> None:
        """Writes what was read anew."""
        if self._is_new:
            with suppress(OSError):  # a read-only store: they are read again each time
                write_atomically(self._file, json.dumps(self._known, sort_keys=True))


def _known_states(content: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """The entries of a file of states that have its form; raises AttributeError or TypeError for another form."""
    return {
        member: {
            name: entry
            for name, entry in names.items()
            if entry.keys() == {"state", "sha256"} and isinstance(entry["sha256"], str)
        }
        for member, names in content.items()
    }


def _states(name: str, folders: Sequence[Path]) -> list[list[Any]]:
    """The state of each file of this path; empty if there is none, or it is refused."""
    try:
        return [_state(file) for file in files_named(name, folders)]
    except (PictureFault, OSError, ValueError, RuntimeError):
        return []


def _state(file: Path) -> list[Any]:
    stat = file.stat()
    # A copy may keep size and time of change; nothing sets the time of the inode's change.
    return [str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]


def _last_change_ns(states: Sequence[Sequence[Any]]) -> int:
    """When one of the files was changed last, in nanoseconds; 0 without any."""
    return max((max(mtime, ctime) for _, _, mtime, ctime, _ in states), default=0)


def _digest(name: str, folders: Sequence[Path]) -> str | None:
    """sha256 of the file of this path. None means that it is not there, or is refused."""
    try:
        return hashlib.sha256(picture_data(name, folders)).hexdigest()
    except PictureFault:
        return None
