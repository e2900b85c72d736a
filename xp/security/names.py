"""Validates names of directories, jobs and files before they are used.

A run directory may come from another user: no text of it is used in a path, in a program's arguments or for a signal
before it is checked here.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from xp.plugins import Kind, names

MAX_PATH: Final = 4096
_RUN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,149}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_NATIVE_IDS: Final = {
    "local": re.compile(r"[1-9][0-9]{0,9}"),
    "slurm": re.compile(r"[1-9][0-9]{0,18}(_[0-9]{1,9})?"),
    "ray": re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,399}"),
    "modal": re.compile(r"ap-[A-Za-z0-9]{1,100}"),
    "skypilot": re.compile(r"xp-[A-Za-z0-9-]{1,300}"),
}
"""Launcher -> form of its job ids."""
_PLUGINS_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,399}")
"""Form of the job ids of a plugin's launcher."""


def is_name(text: object) -> bool:
    """Returns whether a text can name a run or a stage, and so a directory: letters, digits, `_`, `-`, single dots."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def is_variable(text: object) -> bool:
    """Returns whether a text can name an environment variable."""
    return isinstance(text, str) and _VARIABLE.fullmatch(text) is not None


def is_launcher(text: object) -> bool:
    """Returns whether a text names a launcher."""
    return isinstance(text, str) and text in names(Kind.LAUNCHER)


def is_native_id(launcher: object, text: object) -> bool:
    """Returns whether a text is a legal job id of a launcher; an id never starts with a dash and has no space."""
    form = _NATIVE_IDS.get(launcher, _PLUGINS_ID) if isinstance(launcher, str) and is_launcher(launcher) else None
    return form is not None and isinstance(text, str) and form.fullmatch(text) is not None


def is_inner_path(text: object) -> bool:
    """Returns whether a text is a relative path that stays below its starting directory."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATH or not text.isprintable():
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not text.startswith("/") and ".." not in parts
