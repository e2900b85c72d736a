"""Finds tags in a model's text outside of data; a tag inside an argument of a call is a part of that argument."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"
MAX_FAILED: Final = 64
"""Largest number of parts of one text that begin like data and are none; further ones are not examined."""
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True)
class Data:
    """The form of data in one dialect."""

    begin: str
    """Regular expression of the beginning, without capturing groups."""
    end: Callable[[str, re.Match[str]], int | None]
    """Returns the position after the data. None means that the text only begins like data."""


class Tags:
    """The tags of a text that are outside of data.

    Args:
        text: one turn.
        tags: regular expression of the tags, without capturing groups.
        data: the form of data. None means that the text has none.
    """

    def __init__(self, text: str, tags: str, data: Data | None) -> None:
        self._text = text
        self._data = data
        self._pattern = re.compile(tags if data is None else f"{tags}|(?P<data>{data.begin})")
        self._num_failed = 0

    def after(self, position: int) -> re.Match[str] | None:
        """The next tag from a position on."""
        while (tag := self._pattern.search(self._text, position)) is not None:
            if self._data is None or tag.lastgroup != "data":
                return tag
            if self._num_failed < MAX_FAILED:
                end = self._data.end(self._text, tag)
            else:
                end = None
            self._num_failed += end is None
            position = tag.end() if end is None else end
        return None


def json_value(begin: str) -> Data:
    """A JSON object or list; `begin` matches its opening brace or bracket, the first one of the match."""
    return Data(begin, _value_end)


def up_to(opening: str, closing: re.Pattern[str]) -> Data:
    """Text between two tags; `opening` is a regular expression."""

    def end(text: str, begin: re.Match[str]) -> int | None:
        close = closing.search(text, begin.end())
        return None if close is None else close.end()

    return Data(opening, end)


def without_thinking(text: str, data: Data | None = None, *dialects: tuple[str, str]) -> str:
    """The text outside `<think>` blocks; the opening tag may be in the prompt, the closing one may be missing.

    Args:
        text: one turn.
        data: the form of arguments, in which these tags have no meaning.
        dialects: further pairs of tags with the same meaning.
    """
    for opening, closing in ((THINK_OPEN, THINK_CLOSE), *dialects):
        if opening in text or closing in text:
            text = _outside(text, opening, closing, data)
    return text


def _outside(text: str, opening: str, closing: str, data: Data | None) -> str:
    tags = Tags(text, f"{re.escape(opening)}|{re.escape(closing)}", data)
    outside: list[str] = []
    start = position = 0
    may_be_opened_in_prompt = True
    while (tag := tags.after(position)) is not None:
        position = tag.end()
        if tag.group() == opening:
            outside.append(text[start : tag.start()])
            close = text.find(closing, position)
            if close < 0:
                return "".join(outside)
            start = position = close + len(closing)
        elif may_be_opened_in_prompt:
            start = position
        may_be_opened_in_prompt = False
    return "".join([*outside, text[start:]])


def _value_end(text: str, begin: re.Match[str]) -> int | None:
    start = next(at for at in range(*begin.span()) if text[at] in "{[")
    try:
        return _DECODER.raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None
