"""Makes the paths of `env.rows` absolute, since stages run elsewhere; names a file that does not exist."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from xp.compose.faults import Fault
from xp.errors import nearest
from xp.lib.data_files import HUB, path_in


def complete_rows(container: dict[str, Any]) -> Iterator[Fault]:
    """Makes paths absolute in place, from the working directory; yields a fault for each file that is not there."""
    env = container.get("env")
    members = env.get("members", {"": env}) if isinstance(env, dict) else {}
    for name, member in members.items() if isinstance(members, dict) else ():
        rows = member.get("rows") if isinstance(member, dict) else None
        key = "env.rows" if len(members) == 1 else f"env.members.{name}.rows"
        if isinstance(rows, str):
            member["rows"] = yield from _absolute(rows, key)
        elif isinstance(rows, dict):
            for split, file in rows.items():
                if isinstance(file, str):
                    rows[split] = yield from _absolute(file, f"{key}.{split}")


def _absolute(name: str, key: str) -> Generator[Fault, None, str]:
    """Yields the fault of a name of rows; returns the name with an absolute path, if it has a path."""
    path = path_in(name)
    if path is None:
        return name
    place = Path(path).expanduser().absolute()
    if not os.path.exists(place):
        folder = place.parent
        files = sorted(os.listdir(folder)) if os.access(folder, os.R_OK) and folder.is_dir() else []
        hub = f"; a data set of the hub is {HUB}{name}" if "." not in name and name.count("/") == 1 else ""
        yield Fault(key, f"{key}={name}: there is no file {place.name} in {folder}{nearest(place.name, files)}{hub}")
    return name.replace(path, str(place), 1)
