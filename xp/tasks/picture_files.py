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

from xp.envs.base import PictureNamer, Provider, Task
from xp.envs.picture_bytes import PictureFault, files_named, picture_data
from xp.envs.pictures import digests_of
from xp.envs.rows import folders_of
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.reading import json_of
from xp.lib.text import first_of
from xp.tasks.config import MemberConfig, PrepareConfig
from xp.tasks.questions import ask
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
    """The pictures that the tasks of finished shards are made of, as their files are now.

    A grader that writes the prompt itself may leave pictures of its row out, and take others; so it is done here.

    Raises:
        PictureChanged: a file is another one than when its task was fetched, maybe by an earlier command.
    """
    shown: dict[str, dict[str, str]] = {}
    for block in blocks:
        folders = _folders(config.members[block.env])
        provider = providers[block.env]
        if not folders or not isinstance(provider, PictureNamer):
            continue
        member = config.members[block.env]
        now = cache(partial(_digest, folders=folders))
        of_member = shown.setdefault(block.env, {})
        for index, entry in work.read(block).items():
            digests = digests_of(entry.messages)
            task = Task(block.env, block.split, index)
            for name in ask(member, partial(provider.picture_paths, task)):
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
    return first_of(names, MOST_NAMED)


class _States:
    """The states of a set's pictures on this machine, with their digests.

    Args:
        directory: directory of the set.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory.with_name(directory.name + STATES)
        self._known: dict[str, Any] = {}
        """Member and path -> state and sha256."""
        self._is_new = False
        with suppress(OSError, ValueError, TypeError):  # or a file of another form
            self._known = dict(json.loads(self._file.read_bytes()))

    def digest(self, member: str, name: str, folders: Sequence[Path]) -> str | None:
        """sha256 of the file of a member's path now. None means that it is not there, or is refused."""
        state = _states(name, folders)
        if not state:
            return None
        key = f"{member}/{name}"
        match self._known.pop(key, None):
            case [known, str(digest)] if known == state:
                self._known[key] = [state, digest]
                return digest
        self._is_new = True
        now = _digest(name, folders)
        if now is not None and not _is_young(state):
            self._known[key] = [state, now]
        return now

    def keep(self) -> None:
        """Writes what was read anew."""
        if self._is_new:
            with suppress(OSError):  # a read-only store: they are read again each time
                write_atomically(self._file, json.dumps(self._known, sort_keys=True))


def _states(name: str, folders: Sequence[Path]) -> list[list[Any]]:
    """The state of each file of this path; empty if there is none, or it is refused."""
    try:
        return [_state(file) for file in files_named(name, folders)]
    except (PictureFault, OSError, ValueError, RuntimeError):
        return []


def _state(file: Path) -> list[Any]:
    stat = file.stat()
    # A copy may keep size and time of change; nothing sets the time of the inode's change.
    return [str(file), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


def _is_young(states: Sequence[Sequence[Any]]) -> bool:
    return bool(time.time() - _last_change_ns(states) / 1e9 < SETTLED_S)


def _last_change_ns(states: Sequence[Sequence[Any]]) -> int:
    """When one of the files was changed last, in nanoseconds; 0 without any."""
    return max((max(mtime, ctime) for *_, mtime, ctime in states), default=0)


def _digest(name: str, folders: Sequence[Path]) -> str | None:
    """sha256 of the file of this path. None means that it is not there, or is refused."""
    try:
        return hashlib.sha256(picture_data(name, folders)).hexdigest()
    except PictureFault:
        return None
