"""The one way in which text of models, servers and files enters a report: inert, bounded, with what is left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xp.security.terminal import shown

MAX_CHARACTERS: Final = 20_000
"""Largest number of characters of one message in a page. A longer one is shown by its beginning and its end."""
END_SHARE: Final = 0.25
"""Share of the shown characters that are from the end."""
MAX_NAME: Final = 300
"""Largest number of characters of a name, a figure or a reason."""


@dataclass(frozen=True)
class PageText:
    """Text that a page may show as it is."""

    text: str
    left_out: int
    """Characters between beginning and end that are not in `text`."""


def page_text(text: str, most: int | None = MAX_CHARACTERS) -> PageText:
    """Write out control characters, marks of direction and half characters; cut what is longer than `most`."""
    if most is None or len(text) <= most:
        return PageText(shown(text), 0)
    end = int(most * END_SHARE)
    left_out = len(text) - most
    middle = f"\n... {left_out:,} characters left out ...\n"
    return PageText(shown(text[: most - end]) + middle + shown(text[-end:]), left_out)


def page_name(value: object) -> str:
    """A short text, on one line."""
    return shown(str(value)[:MAX_NAME]).replace("\n", " ")
