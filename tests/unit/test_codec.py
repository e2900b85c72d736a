"""Files of a job: what is written is read back as the same value, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest

from xp.lib.codec import JsonFile


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    names: tuple[str, ...]
    share: float | None = None


@dataclass(frozen=True)
class Outer(JsonFile):
    colour: Colour
    inner: Inner | None
    several: tuple[Inner, ...] = ()
    free: dict[str, Any] = field(default_factory=dict)


WHOLE = Outer(Colour.RED, Inner(("a", "ä"), 0.5), (Inner(()),), {"k": [1, 2.5, None, {"x": True}]})


def test_a_file_is_read_back_as_the_value_that_was_written() -> None:
    back = Outer.from_json(WHOLE.to_json())
    assert back == WHOLE
    assert back.to_json() == WHOLE.to_json()
    assert back.colour is Colour.RED
    assert isinstance(back.inner, Inner)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("inner", {"names": ["a"], "share": "0.5"}, "inner.share: "),
        ("inner", {"names": [], "more": 1}, "inner.more: "),
    ],
)
def test_a_value_of_another_type_and_an_unknown_field_are_named(
    place: str, value: Any, told: str
) -> None:
    text = json.dumps({**json.loads(WHOLE.to_json()), place: value})
    with pytest.raises(ValueError, match="^" + told):
        Outer.from_json(text)
