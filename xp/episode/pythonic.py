"""Parses a list of calls in Python's notation: literals only, with a scanner; nothing is evaluated."""

from __future__ import annotations

import re
from typing import Any, Final

MAX_DEPTH: Final = 32
_SPACE: Final = re.compile(r"\s*")
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_STRING: Final = re.compile(r"""'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)\"""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_SHORT: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": ""}
_WORDS: Final = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
"""Constants of Python and of JSON, since LFM2's template writes a dictionary as JSON."""
_MAX_DIGITS: Final = 400
"""Largest number of digits of a number; conversion of digits to an integer takes quadratic time."""


class NotPythonic(ValueError):
    """The text is not a list of calls; the message says why."""


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of `[name(key=value, ...), ...]` at the beginning of the text; raises NotPythonic."""
    return _read(_Scanner(text, 0))


def calls_end(text: str, start: int) -> int | None:
    """The position after the list of calls that begins at `start`; None: there is no such list."""
    scanner = _Scanner(text, start)
    try:
        _read(scanner)
    except NotPythonic:
        return None
    return scanner.position


def _read(scanner: _Scanner) -> list[tuple[str, dict[str, Any]]]:
    scanner.take("[")
    calls: list[tuple[str, dict[str, Any]]] = []
    while not scanner.accepts("]"):
        if calls:
            scanner.take(",")
            if scanner.accepts("]"):
                break
        name = scanner.match(_NAME, "the name of a tool")
        scanner.take("(")
        calls.append((name, scanner.arguments()))
    return calls


class _Scanner:
    """A position in the text; every method moves it forward or raises NotPythonic."""

    def __init__(self, text: str, start: int) -> None:
        self._text, self._at = text, start

    @property
    def position(self) -> int:
        return self._at

    def accepts(self, mark: str) -> bool:
        """Returns whether the mark is next in the text, and if so moves past it."""
        space = _SPACE.match(self._text, self._at)
        assert space is not None  # it matches the empty text
        self._at = space.end()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def take(self, mark: str) -> None:
        if not self.accepts(mark):
            raise NotPythonic(f"expected {mark} at character {self._at}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.accepts("")
        found = pattern.match(self._text, self._at)
        if found is None:
            raise NotPythonic(f"expected {what} at character {self._at}")
        self._at = found.end()
        return found.group()

    def arguments(self) -> dict[str, Any]:
        """Reads `key=value, ...)`; tools have no positional arguments."""
        given: dict[str, Any] = {}
        while not self.accepts(")"):
            if given:
                self.take(",")
                if self.accepts(")"):
                    break
            key = self.match(_NAME, "the name of an argument")
            self.take("=")
            if key in given:
                raise NotPythonic(f"the argument {key[:80]} occurs twice")
            given[key] = self.value(0)
        return given

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise NotPythonic("it is nested too deeply")
        if self.accepts("["):
            return self._items("]", depth)
        if self.accepts("("):
            return self._items(")", depth)
        if self.accepts("{"):
            return self._dictionary(depth)
        if self._text.startswith(("'", '"'), self._at):
            return self._string()
        if self._text[self._at : self._at + 1].isalpha():
            word = self.match(_NAME, "a value")
            if word not in _WORDS:
                raise NotPythonic(f"{word[:80]} is no value; variables and calls cannot be arguments")
            return _WORDS[word]
        return self._number()

    def _items(self, end: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self.accepts(end):
            if items:
                self.take(",")
                if self.accepts(end):
                    break
            items.append(self.value(depth + 1))
        return items

    def _dictionary(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        is_first = True
        while not self.accepts("}"):
            if not is_first:
                self.take(",")
                if self.accepts("}"):
                    break
            is_first = False
            key = self.value(depth + 1)
            if not isinstance(key, str) or key in found:
                raise NotPythonic("a key of a dictionary is no text, or occurs twice")
            self.take(":")
            found[key] = self.value(depth + 1)
        return found

    def _string(self) -> str:
        found = _STRING.match(self._text, self._at)
        if found is None:
            raise NotPythonic(f"the text that begins at character {self._at} does not end")
        self._at = found.end()
        return _ESCAPE.sub(_unescaped, found.group(1) if found.group(1) is not None else found.group(2))

    def _number(self) -> int | float:
        word = self.match(_NUMBER, "a value")
        if len(word) > _MAX_DIGITS:
            raise NotPythonic("a number is too long")
        try:
            return int(word)
        except ValueError:
            return float(word)


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1)
    if code[0] in "xuU" and len(code) > 1:
        point = int(code[1:], 16)
        return chr(point) if point <= 0x10FFFF else found.group()
    if code[0] in "01234567":
        return chr(int(code, 8))
    if code in "'\"\\":
        return code
    return _SHORT.get(code, found.group())
