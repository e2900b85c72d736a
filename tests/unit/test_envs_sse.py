"""Events of a stream, however its bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xp.envs.transport import Event, EventReader

LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=30)


def read(stream: bytes, *cuts: int) -> list[Event]:
    reader = EventReader()
    events = list[Event]()
    start = 0
    for cut in (*sorted(cuts), len(stream)):
        events += reader.feed(stream[start:cut])
        start = max(start, cut)
    return events


def test_comments_names_and_several_data_lines_are_understood() -> None:
    stream = b": ping\r\n\r\nevent: chunk\r\ndata: a\r\ndata:  b\r\nid: 7\r\n\r\ndata:c\n\n"
    assert read(stream) == [Event("chunk", "a\n b"), Event("message", "c")]


def test_bytes_that_are_not_utf8_raise_value_error() -> None:
    with pytest.raises(ValueError):
        read(b"data: \xff\n\n")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["chunk", "end"]), LINE), max_size=5),
    st.data(),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_data_arrives_as_it_was_sent_wherever_the_stream_is_cut(
    sent: list[tuple[str, str]], data: st.DataObject, end: str
) -> None:
    text = "".join(f"event: {name}{end}data: {value}{end}{end}" for name, value in sent)
    stream = text.encode() + b"\n"
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert read(stream, *cuts) == [Event(name, value) for name, value in sent]
