"""Sizes of what `${key}` references expand to, computed before any is expanded: a few levels of ten are gigabytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from xp.compose.files import INTERPOLATION, MAX_BYTES, PLAIN_INTERPOLATION

MAX_CHAIN: Final = 16
"""Largest number of references that follow one another, from a value to the last one that it needs."""
NODE_SIZE: Final = 20
"""Characters for which a section, a list or a number counts."""
_ABSENT: Final = object()

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class _Expanded:
    """A value with its references written out."""

    size: int
    """Number of characters, those of the references included, since empty texts take time too."""
    chain: int = 0
    """References that follow one another in it."""
    is_circle: bool = False


_CIRCLE: Final = _Expanded(0, is_circle=True)


@dataclass
class References:
    """The references of a configuration, none of them expanded."""

    raw: dict[str, Any]
    _known: dict[KeyPath, _Expanded] = field(default_factory=dict)
    _total: int = 0

    def fault(self, path: KeyPath) -> str | None:
        """Returns why the text at a path is not expanded. None: it can be, and its size counts towards the limit."""
        found = self._expanded(path)
        if found.is_circle:
            return "is a circular reference"
        if found.chain > MAX_CHAIN:
            return f"needs a chain of more than {MAX_CHAIN} references; write a value in between"
        if self._total + found.size > MAX_BYTES:
            others = "" if found.size > MAX_BYTES else ", with the references before it"
            limit = f"expands to more than {MAX_BYTES // 1000} kB{others}"
            return f"{limit}; write the value, or refer to it fewer times"
        self._total += found.size
        return None

    def _expanded(self, wanted: KeyPath) -> _Expanded:
        """The size of a value, after those of all that it needs; without recursion, since chains may be long."""
        begun: set[KeyPath] = set()
        stack = [wanted]
        while stack:
            path = stack[-1]
            if path in self._known:
                stack.pop()
                continue
            own, needed, link = self._needs(path)
            if path not in begun:
                begun.add(path)
                stack += [one for one in needed if one not in self._known and one not in begun]
                continue
            parts = [(self._known.get(one, _CIRCLE), count) for one, count in needed.items()]
            self._known[path] = _Expanded(
                own + sum(part.size * count for part, count in parts),
                max((part.chain + link for part, _ in parts), default=0),
                any(part.is_circle for part, _ in parts),
            )
        return self._known[wanted]

    def _needs(self, path: KeyPath) -> tuple[int, Counter[KeyPath], int]:
        """A value's own size, the values that are expanded with it, and whether (1 or 0) they are referred to."""
        value = self._at(path)
        if isinstance(value, dict):
            return NODE_SIZE + sum(map(len, value)), Counter((*path, key) for key in value), 0
        if isinstance(value, list):
            return NODE_SIZE, Counter((*path, str(number)) for number in range(len(value))), 0
        if not isinstance(value, str):
            return NODE_SIZE, Counter(), 0
        return len(value), Counter(one for key in _keys(value) for one in self._reached(key, path)), 1

    def _reached(self, key: str, place: KeyPath) -> Iterator[KeyPath]:
        """Path of the value that a reference names, and of those that are expanded on the way to it.

        Args:
            key: within the braces; one that begins with dots is relative.
            place: of the text with the reference.
        """
        seen: set[KeyPath] = set()
        while True:
            name = key.lstrip(".")
            dots = len(key) - len(name)
            path: KeyPath = (*(place[: max(0, len(place) - dots)] if dots else ()), *name.split("."))
            above = next((one for end in range(1, len(path)) if isinstance(self._at(one := path[:end]), str)), None)
            if above is None:
                if self._at(path) is not _ABSENT:
                    yield path
                return
            # A section that is a reference itself: go on below its target, as far as a chain may lead.
            yield above
            keys = _keys(self._at(above))
            if above in seen or not keys or len(seen) > MAX_CHAIN:
                return
            seen.add(above)
            key, place = ".".join([keys[0], *path[len(above) :]]), above

    def _at(self, path: KeyPath) -> Any:
        node: Any = self.raw
        for part in path:
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, list) and part.isdecimal() and int(part) < len(node):
                node = node[int(part)]
            else:
                return _ABSENT
        return node


def _keys(text: str) -> list[str]:
    """The keys that a text's references name."""
    found = (PLAIN_INTERPOLATION.match(text, match.end() - 2) for match in INTERPOLATION.finditer(text))
    return [one.group()[2:-1] for one in found if one]
