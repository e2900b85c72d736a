"""Escapes and cuts every text of models, servers and files for a report, with the number of omitted characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from xp.lib.terminal import shown

MAX_CHARACTERS: Final = 20_000
"""Largest number of characters of one message in a page; the middle of a longer one is omitted."""
END_SHARE: Final = 0.25
"""Share of the shown characters that come from the end."""
MAX_NAME: Final = 300
"""Largest number of characters of a name, a number or a reason."""


@dataclass(frozen=True)
class PageText:
    """Text that a page can show unchanged."""

    text: str
    left_out: int
    """Number of characters that were omitted between beginning and end."""


def page_text(text: str, most: int | None = MAX_CHARACTERS) -> PageText:
    """Escapes control characters, direction marks and lone surrogates; cuts texts longer than `most`."""
    if most is None or len(text) <= most:
        return PageText(shown(text), 0)
    end = int(most * END_SHARE)
    left_out = len(text) - most
    middle = f"\n... {left_out:,} characters left out ...\n"
    return PageText(shown(text[: most - end]) + middle + shown(text[-end:]), left_out)


def page_name(value: object) -> str:
    """A short text, on one line."""
    return shown(str(value)[:MAX_NAME]).replace("\n", " ")


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}
