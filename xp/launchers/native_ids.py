"""Forms of the launchers' job ids; an id of a record is checked before it goes to a program or names a process."""

from __future__ import annotations

import re
from typing import Final

from xp.plugins import Kind, names

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


def is_launcher(text: object) -> bool:
    """Returns whether a text names a launcher."""
    return isinstance(text, str) and text in names(Kind.LAUNCHER)


def is_native_id(launcher: object, text: object) -> bool:
    """Returns whether a text is a legal job id of a launcher; an id never starts with a dash and has no space."""
    form = _NATIVE_IDS.get(launcher, _PLUGINS_ID) if isinstance(launcher, str) and is_launcher(launcher) else None
    return form is not None and isinstance(text, str) and form.fullmatch(text) is not None
