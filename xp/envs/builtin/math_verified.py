"""A grader that accepts a right answer in any notation, by the package math-verify.

A module of its own, so that an interpreter without the package says so before the first episode.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from math_verify import ExprExtractionConfig, LatexExtractionConfig, StringExtractionConfig, verify
from math_verify import parse as _parse

from xp.envs.builtin.graders import plain, ready, unwrapped

TASKS_VERSION = "2"
"""See xp.envs.builtin.graders."""

# Its own time-outs are signals, which only a main thread may set: they are off (`ready` has a limit in place of them),
# and it would warn of that at every answer.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)

parse = partial(_parse, parsing_timeout=None)
LATEX = LatexExtractionConfig()
PLAIN = ExprExtractionConfig()
WHOLE = replace(LATEX, normalization_config=replace(LATEX.normalization_config, units=False))
"""LaTeX with what may be a unit at its end."""
CHOICES: Final = StringExtractionConfig(strings=tuple("ABCDEFGH"))
_MARKED: Final = re.compile(r"\$|\\(?:boxed|fbox|\(|\[)")
_LETTER: Final = re.compile(r"\(?([A-H])\)?")
_TEXT: Final = re.compile(r"[^\W\d_]{3,}(?:[ '-][^\W\d_]+)*")
_NUMBER: Final = re.compile(r"(?:[-\d.,\s/*+^()%$€£¥]|\\[%$])+")
_UNIT: Final = re.compile(r"[^\d{},;]*(?:\{[^\d{},;]*\})?(?:\^(?:\d|\{\d\}))?")


@ready(
    lambda right: str(right) if _MARKED.search(str(right)) else f"\\boxed{{{right}}}", limit_s=10.0
)
def math(answer: str, right: Any) -> bool:
    """An answer that math-verify holds for equal to the right one, which it reads as LaTeX, else as a plain number."""
    text = str(right).replace("####", "").strip()
    if _TEXT.fullmatch(text):  # As LaTeX, it would be a product of letters in any order.
        return any(
            plain(unwrapped(form)) == plain(text)
            for form in (answer, *parse(answer))
            if isinstance(form, str)
        )
    expected, latex = _right(text)
    letter = _LETTER.fullmatch(text)
    given = parse(answer.replace("####", ""), (latex, PLAIN, CHOICES) if letter else (latex, PLAIN))
    return bool(
        verify([*expected, letter[1].lower()] if letter else expected, given, timeout_seconds=None)
    )


@lru_cache(maxsize=64)
def _right(text: str) -> tuple[list[Any], LatexExtractionConfig]:
    """Readings of a right answer, and how its answers are read: units are left out if nothing else is left out so.

    Raises:
        ValueError: it is not read whole.
    """
    marked = text if _MARKED.search(text) else f"${text}$"
    latex = LATEX
    read = parse(marked, (LATEX,))
    if read and len(read[-1]) < len(text.strip("$ ")):
        whole = parse(marked, (WHOLE,))
    else:
        whole = read
    if read and not (
        whole[-1].startswith(read[-1]) and _UNIT.fullmatch(whole[-1][len(read[-1]) :])
    ):
        read = whole
        latex = WHOLE
    if (not read or isinstance(read[0], str)) and _NUMBER.fullmatch(text):
        read = [*parse(text, (PLAIN,)), *read]
    if not read or read[-1].count("{") != read[-1].count("}"):
        raise ValueError(f"its answer is {text!r:.60}, which math-verify cannot read whole")
    return list(read), latex
