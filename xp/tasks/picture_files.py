"""Files of pictures that rows name: their digests belong to a task set, which is not used after one was replaced.

The set's key has the rows alone, so that a plan reads no picture. The set itself has `pictures.json` with the sha256 of
each file by the path in the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Final

from xp.envs.base import PictureNamer, Provider, Task
from xp.envs.picture_bytes import PictureFault, files_named, picture_data
from xp.envs.pictures import digests_of
from xp.envs.rows import folders_of
from xp.errors import ExitCode, XpError
from xp.lib.reading import json_of
from xp.lib.text import first_of
from xp.tasks.config import MemberConfig, PrepareConfig
from xp.tasks.entries import WorkDirectory
from xp.tasks.questions import ask
from xp.tasks.selection import SelectedTask

FILE: Final = "pictures.json"
MOST_NAMED: Final = 3
"""Largest number of files that a message names."""

Digests = Mapping[str, Mapping[str, str]]
"""Member -> path as the rows have it -> sha256."""


def members_with_folders(config: PrepareConfig) -> set[str]:
    """Members whose rows are from a file, beside which there may be pictures."""
    return {name for name, member in config.members.items() if _folders(member)}


def _folders(member: MemberConfig) -> list[Path]:
    """Folders of a member's pictures; empty without model.images."""
    if member.env.images is None:
        return []
    return folders_of(member.env.rows)


def digests_of_rows(
    config: PrepareConfig,
    tasks: Sequence[SelectedTask],
    work: WorkDirectory,
    providers: Mapping[str, Provider],
    began_s: float,
) -> Digests:
    """The pictures that the fetched tasks are made of, as their files are now.

    A grader that writes the prompt itself may leave pictures of its row out, and take others; so it is done here.

    Args:
        config: the request.
        tasks: the selected tasks.
        work: has those that were fetched.
        providers: member -> its provider.
        began_s: when the first task was fetched, in seconds since 1970.

    Raises:
        XpError: (TASKS) a file is another one than when its task was fetched.
    """
    shown: dict[str, dict[str, str]] = {}
    for name, member in config.members.items():
        folders = _folders(member)
        provider = providers[name]
        if not folders or not isinstance(provider, PictureNamer):
            continue
        now = cache(partial(_digest, folders=folders))
        of_member: dict[str, str] = {}
        for task, entry in work.entries(task for task in tasks if task.env == name):
            digests = digests_of(entry.messages)
            described = Task(name, task.split, task.index)
            for path in ask(member, partial(provider.picture_paths, described)):
                digest = now(path)
                if digest in digests:
                    of_member[path] = digest
                elif _last_change_s(path, folders) >= began_s:
                    raise XpError(
                        f"env {name}: the picture {path} of task {task.task_id} changed while the tasks were prepared\n"
                        "run the same command again, which fetches them again",
                        ExitCode.TASKS,
                    )
        if of_member:
            shown[name] = of_member
    return shown


def changed_pictures(directory: Path, config: PrepareConfig) -> list[str]:
    """Paths of the rows' pictures whose files are other ones than those of the set, or are not there any more.

    Args:
        directory: directory of a verified set.
        config: its request.
    """
    file = directory / FILE
    if not file.is_file():
        return []
    digests = json_of(file, ExitCode.TASKS)
    changed: list[str] = []
    with ThreadPoolExecutor() as pool:
        for member, names in digests.items():
            now = pool.map(partial(_digest, folders=_folders(config.members[member])), names)
            changed += [
                name for name, digest in zip(names, now, strict=True) if digest != names[name]
            ]
    return changed


def few(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return first_of(names, MOST_NAMED)


def _last_change_s(name: str, folders: Sequence[Path]) -> float:
    """When a file of this path was changed or put there last, in seconds since 1970; 0 if there is none."""
    try:
        # A copy may keep the time of the content; nothing sets the time of the inode.
        return max(file.stat().st_ctime for file in files_named(name, folders))
    except (PictureFault, OSError, ValueError, RuntimeError):
        return 0.0


def _digest(name: str, folders: Sequence[Path]) -> str | None:
    """sha256 of the file of this path. None means that it is not there, or is refused."""
    try:
        return hashlib.sha256(picture_data(name, folders)).hexdigest()
    except PictureFault:
        return None
