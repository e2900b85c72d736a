"""A grader that holds an answer for right however it is written, by the package math-verify.

A module of its own, so that an interpreter without the package says so before the first episode.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from math_verify import parse, verify

# Its own time-outs are signals, which only a main thread may set: they are off (xp's limit is
# env.limits.call_timeout_s), and it would warn of that at every answer.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def grade(answer: str, row: Mapping[str, Any]) -> float:
    """1 if math-verify holds the answer for equal to the row's, else 0."""
    gold, given = (parse(text, parsing_timeout=None) for text in (row["answer"], answer.replace("####", "")))
    return float(bool(verify(gold, given, timeout_seconds=None)))
