"""Exact reader of server-sent events; the SDK's own reader strips leading whitespace of every 4 KB piece."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    name: str
    data: str


class EventReader:
    """Converts the bytes of a stream to events (WHATWG's rules; ids are not kept)."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes.

        Raises:
            ValueError: a line is not UTF-8.
        """
        self._tail += piece
        if b"\n" not in piece and b"\r" not in piece:
            return []
        lines = bytes(self._tail).splitlines(keepends=True)
        # An incomplete line waits for more bytes, and so does "\r", which may be the first half of "\r\n".
        self._tail = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
        events: list[Event] = []
        for line in lines:
            self._take(line.rstrip(b"\r\n").decode(), events)
        return events

    def _take(self, line: str, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name or "message", "\n".join(self._data)))
            self._name, self._data = "", []
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
