"""Escapes and cuts every text of models, servers and files for a report, with the number of omitted characters."""

from __future__ import annotations

from typing import Any, Final

from xp.lib.terminal import shown

MAX_CHARACTERS: Final = 20_000
"""Largest number of characters of one message in a page; the middle of a longer one is omitted."""
END_SHARE: Final = 0.25
"""Share of the shown characters that come from the end."""
MAX_NAME: Final = 300
"""Largest number of characters of a name, a number or a reason."""


def page_text(text: str, most: int | None = MAX_CHARACTERS) -> str:
    """Escapes control characters, direction marks and lone surrogates; cuts texts longer than `most`."""
    if most is None or len(text) <= most:
        return shown(text)
    end = int(most * END_SHARE)
    return f"{shown(text[: most - end])}\n... {len(text) - most:,} characters left out ...\n{shown(text[-end:])}"


def page_name(value: object) -> str:
    """A short text, on one line."""
    return shown(str(value)[:MAX_NAME]).replace("\n", " ")


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
