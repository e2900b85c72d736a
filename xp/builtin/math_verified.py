"""A grader that holds an answer for right however it is written, by the package math-verify.

A module of its own, so that an interpreter without the package says so before the first episode.
"""

from __future__ import annotations

import logging
from typing import Any

from math_verify import parse, verify

from xp.builtin.graders import ready

TASKS_VERSION = "1"
"""See xp.builtin.graders."""

# Its own time-outs are signals, which only a main thread may set: they are off (xp's limit is
# env.limits.call_timeout_s), and it would warn of that at every answer.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


@ready
def math(answer: str, right: Any) -> bool:
    """An answer that math-verify holds for equal to the right one."""
    # Without a box or dollar signs, it reads plain numbers alone.
    expected = parse(str(right), parsing_timeout=None) or parse(f"\\boxed{{{right}}}", parsing_timeout=None)
    if not expected:
        raise ValueError(f"its answer is {right!r:.60}, which math-verify cannot read")
    given = parse(answer.replace("####", ""), parsing_timeout=None)
    return bool(verify(expected, given, timeout_seconds=None))
