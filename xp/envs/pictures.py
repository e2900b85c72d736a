"""Pictures of messages: a mark in the content stands for each one, whose bytes are in the store (picture_store.py)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from xp.envs.base import PICTURE_MARK, Message, Picture, ProtocolError
from xp.lib.digest import digest_of

REPLACEMENT: Final = "\ufffd"
PICTURE_PARTS: Final = ("image", "image_url", "input_image")
"""Types of the parts of a message that are pictures."""
OFF: Final = "set model.images, for example model.images=true, if the model reads pictures"


def unread(value: Any) -> Picture:
    """A picture that is not read: it has the digest of how it is written, to check and to compare prompts cheaply."""
    return Picture(sha256=digest_of(value), media_type="image/unread", width=1, height=1, size=1)


def is_picture_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in PICTURE_PARTS


def joined(parts: Iterable[str | Picture], *, between: str = "") -> tuple[str, list[Picture]]:
    """The content of a message with these texts and pictures, and its pictures.

    A text of a message with pictures cannot have a mark of its own.

    Args:
        parts: in their order.
        between: text between two texts that follow each other.
    """
    parts = list(parts)
    has_pictures = any(not isinstance(part, str) for part in parts)
    content = ""
    pictures: list[Picture] = []
    is_after_text = False
    for part in parts:
        if isinstance(part, str):
            text = part.replace(PICTURE_MARK, REPLACEMENT) if has_pictures else part
            content += (between if is_after_text else "") + text
        else:
            content += PICTURE_MARK
            pictures.append(part)
        is_after_text = isinstance(part, str)
    return content, pictures


def parts_of(message: Mapping[str, Any]) -> list[str | Picture]:
    """The texts, without empty ones, and the pictures of a message: the reverse of `joined`."""
    pictures = list(message.get("pictures", ()))
    if not pictures:
        return [message["content"]]
    texts = message["content"].split(PICTURE_MARK)
    parts: list[str | Picture] = []
    for number, text in enumerate(texts):
        if text:
            parts.append(text)
        if number < len(pictures):
            parts.append(pictures[number])
    return parts


def with_pictures(message: Message, parts: Iterable[str | Picture]) -> Message:
    """A message with these parts as its content."""
    content, pictures = joined(parts)
    changed = Message({**message, "content": content})
    changed.pop("pictures", None)
    if pictures:
        changed["pictures"] = pictures
    return changed


def separated(groups: Iterable[Iterable[str | Picture]], between: str) -> Iterator[str | Picture]:
    """The parts of all groups, with a text between two groups."""
    for number, group in enumerate(groups):
        if number:
            yield between
        yield from group


def with_each_picture(message: Message, change: Callable[[Picture], str | Picture]) -> Message:
    """A message with a text or another picture in place of each picture."""
    parts = parts_of(message)
    return with_pictures(
        message, [part if isinstance(part, str) else change(part) for part in parts]
    )


def with_each_text(message: Message, split: Callable[[str], Iterable[str | Picture]]) -> Message:
    """A message with texts and pictures in place of each text."""
    parts: list[str | Picture] = []
    for part in parts_of(message):
        if isinstance(part, str):
            parts += split(part)
        else:
            parts.append(part)
    return with_pictures(message, parts)


def pictures_of(messages: Iterable[Mapping[str, Any]]) -> list[Picture]:
    """All pictures of the messages, in their order."""
    return [picture for message in messages for picture in message.get("pictures", ())]


def own_pictures(message: Mapping[str, Any]) -> list[Picture]:
    """The pictures of a message in xp's own form; raises ProtocolError for another form."""
    pictures = message["pictures"]
    is_list = isinstance(pictures, list | tuple)
    if not is_list or not all(is_picture(picture) for picture in pictures):
        raise ProtocolError(
            f"expected images as parts of the content, got pictures={pictures!r:.60}"
        )
    if message["content"].count(PICTURE_MARK) != len(pictures):
        raise ProtocolError("a message has another number of pictures than of their marks")
    return list(pictures)


def is_picture(value: Any) -> bool:
    """Returns whether a value is a picture in xp's own form."""
    return (
        isinstance(value, Mapping)
        and value.keys() == Picture.__annotations__.keys()
        and re.fullmatch("[0-9a-f]{64}", str(value["sha256"])) is not None
    )


def digests_of(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """sha256 of the pictures of the messages, in their order, as their placeholders stand in the tokens."""
    return [picture["sha256"] for picture in pictures_of(messages)]


def described(picture: Picture) -> str:
    """A picture in words, for terminals and texts: `[image 64x64 png 1a2b3c4d]`."""
    kind = picture["media_type"].removeprefix("image/")
    return f"[image {picture['width']}x{picture['height']} {kind} {picture['sha256'][:8]}]"


def text_of(message: Mapping[str, Any]) -> str:
    """The content with its pictures in words."""
    return "".join(part if isinstance(part, str) else described(part) for part in parts_of(message))


def without(message: Message, reason: str, *, but: int = 0) -> Message:
    """A message with a text in place of its pictures after the first ones.

    Args:
        message: the message.
        reason: why they are left out.
        but: number of first pictures that stay.
    """
    numbers = itertools.count()

    def kept_or_text(picture: Picture) -> str | Picture:
        if next(numbers) < but:
            return picture
        return f"[image left out: {reason}]"

    return with_each_picture(message, kept_or_text)


def checked(messages: Sequence[Message], *, is_on: bool) -> Sequence[Message]:
    """Returns the messages of an environment; raises ProtocolError for a picture if they are off, or not one for each
    mark."""
    for message in messages:
        if not message.get("pictures"):
            continue
        pictures = own_pictures(message)
        if not is_on:
            kind = pictures[0]["media_type"]
            raise ProtocolError(f"an image ({kind}): xp gives a model text alone; {OFF}")
    return messages
