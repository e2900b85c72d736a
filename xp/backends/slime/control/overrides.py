"""The flags that a user cannot set, and the other names of xp's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xp.backends.slime.control.flags import catalog

TABLE = Path(__file__).with_name("overrides.toml")


def with_aliases(owned: Mapping[str, str]) -> dict[str, str]:
    """Flag -> its field, with the other names of xp's flags."""
    by_dest = {
        catalog().flags[name].dest: field
        for name, field in owned.items()
        if name in catalog().flags
    }
    return {
        name: by_dest[flag.dest] for name, flag in catalog().flags.items() if flag.dest in by_dest
    } | dict(owned)
