"""Pictures on the wires of programs: the messages that they become, and the comparison of two requests by them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.programs.picture_agent import (
    anthropic_part,
    chat_part,
    png,
    responses_part,
)
from xp.contrib.harness import anthropic_wire, chat_wire, responses_wire
from xp.contrib.harness.request import RefusedRequest, RequestPictures, difference
from xp.envs.base import PICTURE_MARK, Message
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import REPLACEMENT, digests_of

WIRES = [
    (chat_wire, chat_part, "messages", "text"),
    (responses_wire, responses_part, "input", "input_text"),
    (anthropic_wire, anthropic_part, "messages", "text"),
]
SEEN = Message(role="assistant", content="I see.")


@pytest.fixture
def pictures(tmp_path: Path) -> RequestPictures:
    return RequestPictures(PictureStore(tmp_path).keep)


def asked(part: Any, text_type: str, at: str = "red") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": text_type, "text": "Look:"}, part(at)]}


@pytest.mark.parametrize(("wire", "part", "field", "text_type"), WIRES)
def test_a_repeated_conversation_is_known_by_its_pictures(
    wire: ModuleType, part: Any, field: str, text_type: str, pictures: RequestPictures
) -> None:
    first = asked(part, text_type)
    more = [dict(SEEN), {"role": "user", "content": "And now?"}]
    before = wire.read({field: [first]}, pictures)
    assert before.messages[0]["content"] == f"Look:{PICTURE_MARK}"
    assert difference(before, SEEN, wire.read({field: [first, *more]}, pictures)) is None
    other = wire.read({field: [asked(part, text_type, "blue"), *more]}, pictures)
    reason = difference(before, SEEN, other)
    assert reason == "message 0, a user message, is another one than before"


def test_only_the_parts_of_a_message_are_its_pictures(
    pictures: RequestPictures, tmp_path: Path
) -> None:
    """A program can neither name a picture of the store nor write the mark of one."""
    known = PictureStore(tmp_path).keep(png((0, 0, 0)))
    claimed = {"role": "user", "content": PICTURE_MARK, "pictures": [known]}
    (message,) = chat_wire.read({"messages": [claimed]}, pictures).messages
    assert digests_of([message]) == []
    parts = [{"type": "text", "text": f"a{PICTURE_MARK}b"}, chat_part("red")]
    body = {"messages": [{"role": "user", "content": parts}]}
    (message,) = chat_wire.read(body, pictures).messages
    assert message["content"] == f"a{REPLACEMENT}b{PICTURE_MARK}"


REFUSED: list[tuple[Any, str]] = [
    ({"type": "image_url", "image_url": {"url": "https://host/a.png"}}, "xp downloads no images"),
    ({"type": "image_url", "image_url": {"url": "/etc/hostname"}}, "a path"),
    ({"type": "input_image", "file_id": "f"}, "expected an image"),
]


@pytest.mark.parametrize(("part", "words"), REFUSED)
def test_a_picture_that_cannot_be_read_is_refused_in_a_prompt_and_a_text_later(
    part: Any, words: str, pictures: RequestPictures
) -> None:
    message = {"role": "user", "content": [part]}
    with pytest.raises(RefusedRequest, match=words):
        chat_wire.read({"messages": [message]}, pictures)
    first = {"role": "user", "content": "Look."}
    *_, last = chat_wire.read({"messages": [first, dict(SEEN), message]}, pictures).messages
    assert last["content"].startswith("[image left out: ")
    assert words in last["content"]
