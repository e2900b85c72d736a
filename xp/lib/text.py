"""Texts for files and messages, without lone surrogates: JSON allows them, but UTF-8, Parquet and tokenizers do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def valid_text(text: str) -> str:
    """The text as Unicode: two surrogates of one character are joined, a lone one becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def valid_value(value: Any) -> Any:
    """A JSON value with `valid_text` of all its texts, keys included; raises RecursionError for deep nesting."""
    match value:
        case str():
            return valid_text(value)
        case dict():
            return {valid_value(key): valid_value(entry) for key, entry in value.items()}
        case list():
            return [valid_value(entry) for entry in value]
        case _:
            return value


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


def counted(number: int, noun: str, plural: str = "") -> str:
    """Words such as `1 task` and `1,200 tasks`.

    Args:
        number: how many.
        noun: in the singular.
        plural: where it is more than an added `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def as_yaml(value: Any) -> str:
    """A value in YAML's syntax, in one line."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(as_yaml, value))}]"
        case dict():
            return "{" + ", ".join(f"{key}: {as_yaml(entry)}" for key, entry in value.items()) + "}"
    return str(value)


def shortened(text: str, most: int = 60) -> str:
    """The text with at most this number of characters."""
    if len(text) <= most:
        return text
    return f"{text[: most - 3]}..."


def first_line(error: BaseException) -> str:
    """First line of an exception's text."""
    return str(error).partition("\n")[0]


def first_of(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first texts of a list and the number of the others, such as `a, b and 3 more`."""
    if len(texts) > most:
        more = f" and {len(texts) - most} more"
    else:
        more = ""
    return separator.join(texts[:most]) + more
