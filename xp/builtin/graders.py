"""Ready graders of one answer, named by `env.grader`: 1 if it agrees with a right answer of the row, else 0.

docs/environments.md has the table of what counts. A list in the column `answer` has several right answers. A right
answer that no answer can agree with is a ValueError, which xp.envs.graders raises before the first episode.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from typing import Any, Final

TASKS_VERSION = "1"
"""Graders make no tasks: a change of this file must not prepare any anew."""

_NUMBER: Final = re.compile(
    r"(?:(?<![\w)\].])[-+])?(?:(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\w)\.\d+)"
    r"(?:[eE][-+]?\d{1,3}(?!\d))?(?:/\d+(?:\.\d+)?)?"
)
_MARKS: Final = re.compile(r"####\s*(?=([^\n]*))|\\boxed\s*\{")
_LONE_LETTER: Final = re.compile(r"\W*([A-Za-z])\W*")
_FIRST_LETTER: Final = re.compile(r"\W*([A-Z])(?:[).:,*\]]|\s*\n)")
_NAMED_LETTER: Final = re.compile(r"\b(?i:answer|choice|option)\b(?i:\s+is)?[\s:*_$(\[\"']*([A-Z])(?![\w'])")
_WORDS: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf|mbox)\s*\{([^{}]*)\}")
_AROUND: Final = " \t*_`\"'\u201c\u201d\u2018\u2019$"


def ready(agrees: Callable[..., bool]) -> Callable[..., float]:
    """A grader, by the comparison of an answer with one right answer."""

    @wraps(agrees)
    def grade(answer: str, row: Mapping[str, Any], **arguments: Any) -> float:
        right = row.get("answer")
        several = right if isinstance(right, (list, tuple)) else [right]
        if not several or any(one is None or isinstance(one, Mapping) for one in several):
            raise ValueError(f"its answer is {right!r:.60}; expected a text, a number, or a list of them")
        agreements = [agrees(answer, one, **arguments) for one in several]
        return float(any(agreements))

    return grade


def none(answer: str, row: Mapping[str, Any]) -> float:  # noqa: ARG001
    """0 for every answer: the reward is that of a judge or of a function."""
    return 0.0


@ready
def exact(answer: str, right: Any) -> bool:
    """The whole answer, apart from case, white space, marks around it and a full stop."""
    return plain(answer) == plain(str(right))


@ready
def contains(answer: str, right: Any) -> bool:
    """The right answer anywhere, as whole words or a whole number."""
    text = _spaced(str(right)).strip()
    if not text:
        raise ValueError("its answer is an empty text, which every answer contains")
    before = r"(?<!\w)(?<!\d[.,])(?<![^\w]-)" if text[0].isdigit() else r"(?<!\w)" if text[0].isalnum() else ""
    after = r"(?!\w)(?![.,]\d)" if text[-1].isdigit() else r"(?!\w)" if text[-1].isalnum() else ""
    return bool(re.search(before + re.escape(text) + after, f" {_spaced(answer)}"))


@ready
def number(answer: str, right: Any, tolerance: float = 0.0) -> bool:
    """The first number of the final part (`####`, `\\boxed{}`), or without such a part the last one of the answer."""
    expected, given = _right_number(right), _final_number(answer)
    return given is not None and abs(given - expected) <= Fraction(tolerance)


@ready
def gsm8k(answer: str, right: Any) -> bool:
    """The first number of the final part (`####`, `\\boxed{}`); an answer without such a part is wrong."""
    expected = _right_number(right)
    return final_part(answer) is not None and _final_number(answer) == expected


@ready
def boxed(answer: str, right: Any) -> bool:
    """The last `\\boxed{}`, apart from spaces, case and the typesetting of LaTeX, or with an equal number."""
    box, right_box = _last_box(answer), _last_box(str(right))
    if box is None:
        return False
    (text, value), (right_text, right_value) = map(_unset, (box, str(right) if right_box is None else right_box))
    return text == right_text or (value is not None and value == right_value)


@ready
def choice(answer: str, right: Any) -> bool:
    """A letter: of the final part, else after "answer is" or "Answer:", else alone on the last line, else at the
    beginning, as in "(B)" and "B. Rome"."""
    is_position = isinstance(right, int) and not isinstance(right, bool) and 0 <= right < 26
    expected = _LONE_LETTER.fullmatch(chr(ord("A") + right) if is_position else str(right))
    if expected is None:
        raise ValueError(f"its answer is {right!r:.60}; expected a letter, or a whole number from 0 (0 is A)")
    part, last_line = final_part(answer), answer.strip().rpartition("\n")[2]
    *_, named = [None, *_NAMED_LETTER.finditer(answer if part is None else "")]
    words = _WORDS.sub(r"\1", part or answer)
    letter = named or _LONE_LETTER.fullmatch(last_line if part is None else words) or _FIRST_LETTER.match(words)
    return letter is not None and letter[1].upper() == expected[1].upper()


@ready
def regex(answer: str, right: Any, pattern: str | None = None) -> bool:
    """A pattern whose last match (its first group, if it has one) is the right answer, compared as by `exact`; without
    one, the right answer is a pattern that the answer must match somewhere."""
    try:
        compiled = re.compile(str(right) if pattern is None else pattern)
    except re.error as error:
        raise ValueError(f"{str(pattern or right)!r:.60} is no regular expression: {error}") from None
    *_, last = [None, *compiled.finditer(answer)]
    if pattern is None or last is None:
        return last is not None
    return plain(last[min(1, compiled.groups)] or "") == plain(str(right))


def plain(text: str) -> str:
    """A text without differences of case, white space, marks around it (`**`, quotes, `$`) and a full stop."""
    return _spaced(text).strip(_AROUND).removesuffix(".").strip(_AROUND) or text.strip()


def final_part(text: str) -> str | None:
    """The content of the last whole `\\boxed{}`, or the line after the last `####`, whichever is later; else None."""
    parts = [_braced(text[mark.end() :]) if mark[1] is None else mark[1] for mark in _MARKS.finditer(text)]
    return next((part for part in reversed(parts) if part is not None), None)


def _last_box(text: str) -> str | None:
    boxes = [_braced(text[mark.end() :]) for mark in _MARKS.finditer(text) if mark[1] is None]
    return next((box for box in reversed(boxes) if box is not None), None)


def _braced(text: str) -> str | None:
    """The text before the brace that closes an open one; None if there is none."""
    depth = 1
    for brace in re.finditer(r"\\?[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # An escaped one is a character.
        if depth == 0:
            return text[: brace.start()]
    return None


def numbers(text: str) -> list[Fraction]:
    """All numbers of a text: digits with thousands commas, a decimal point, an exponent, or a fraction a/b."""
    for old, new in (("\N{MINUS SIGN}", "-"), ("\\$", "$"), ("{,}", ","), ("\\,", ""), ("\\!", "")):
        text = text.replace(old, new)
    text = re.sub(r"\\[dt]?frac\s*\{([\d.]+)\}\s*\{([\d.]+)\}", r"\1/\2", text)
    text = re.sub(r"(-?)\s*[$€£]\s*", r" \1", text)
    pairs = [match[0].replace(",", "").partition("/")[::2] for match in _NUMBER.finditer(text)]
    fractions = [(Fraction(Decimal(above)), Fraction(Decimal(below or "1"))) for above, below in pairs]
    return [above / below for above, below in fractions if below]


def _final_number(text: str) -> Fraction | None:
    part = final_part(text)
    values = numbers(text if part is None else part)
    return None if not values else values[-1 if part is None else 0]


def _right_number(right: Any) -> Fraction:
    if (value := _final_number(str(right))) is None:
        raise ValueError(f"its answer is {right!r:.60}, which has no number")
    return value


def _unset(latex: str) -> tuple[str, Fraction | None]:
    """LaTeX without its typesetting, and its value if it is one number."""
    text = _WORDS.sub(r"\1", latex)
    text = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;: ]|\\?[$%]|\^\{?\\circ\}?|\s", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).removesuffix(".").casefold()
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    is_number = re.fullmatch(r"-?(?:[\d.,]|\{,\})+|-?[\d.]+/[\d.]+|-?\\frac\{[\d.]+\}\{[\d.]+\}", text)
    values = numbers(text) if is_number else []
    return text, values[0] if len(values) == 1 else None


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()
