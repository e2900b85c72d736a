"""Text of a number with its noun, in the singular for 1."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Words such as `1 task` and `1,200 tasks`.

    Args:
        number: how many.
        noun: in the singular.
        plural: where it is more than an added `s`.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
