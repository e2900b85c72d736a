"""An expression is parsed although another parser runs in the middle."""

from __future__ import annotations

import ast
import gc

import pytest

from xp.episode.tool_calls import parse_expression

SOURCE = "[f(a={'x': [1, (2, {'y': [3]})]}, b=g(h(k(1))))]"


class _Parsing:
    """A part of a circle that parses when the garbage collector removes it."""

    def __init__(self) -> None:
        self.circle = self

    def __del__(self) -> None:
        _parse_deeper(20)


def _parse_deeper(depth: int) -> None:
    if depth:
        _parse_deeper(depth - 1)
    else:
        ast.parse("1")


@pytest.fixture
def frequent_collection():
    threshold = gc.get_threshold()
    gc.set_threshold(3)
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("frequent_collection")
def test_another_parser_in_the_middle_changes_nothing() -> None:
    for _ in range(50):
        _Parsing()
        assert ast.dump(parse_expression(SOURCE)).startswith("List(")


def test_a_wrong_text_is_refused() -> None:
    with pytest.raises(SyntaxError):
        parse_expression("[f(")
