"""Ready graders of one answer, named by `env.grader`: 1 if it agrees with a right answer of the row, else 0.

docs/environments.md has the table of what counts. A list in the column `answer` has several right answers.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
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


class Ready(ABC):
    """Base of the ready graders; see xp.envs.graders for the interface."""

    @abstractmethod
    def expected(self, right: Any) -> Any:
        """A right answer in the form that is compared; raises ValueError if it has no such form."""

    @abstractmethod
    def is_right(self, answer: str, expected: Any) -> bool: ...

    def grade(self, answer: str, row: Mapping[str, Any]) -> float:
        return float(any(self.is_right(answer, one) for one in self.all_expected(row)))

    def all_expected(self, row: Mapping[str, Any]) -> list[Any]:
        return [self.expected(one) for one in right_answers(row)]

    def check(self, row: Mapping[str, Any]) -> None:
        """Raises ValueError for a row without a right answer, or with one that no answer could equal."""
        self.all_expected(row)


class Exact(Ready):
    """The whole answer, apart from case, white space, marks around it and a full stop."""

    def expected(self, right: Any) -> str:
        return plain(str(right))

    def is_right(self, answer: str, expected: Any) -> bool:
        return bool(plain(answer) == expected)


class Contains(Ready):
    """The right answer anywhere, as whole words or a whole number."""

    def expected(self, right: Any) -> re.Pattern[str]:
        text = _spaced(str(right)).strip()
        if not text:
            raise ValueError("its answer is an empty text, which every answer contains")
        before = r"(?<!\w)(?<!\d[.,])(?<![^\w]-)" if text[0].isdigit() else r"(?<!\w)" if text[0].isalnum() else ""
        after = r"(?!\w)(?![.,]\d)" if text[-1].isdigit() else r"(?!\w)" if text[-1].isalnum() else ""
        return re.compile(before + re.escape(text) + after)

    def is_right(self, answer: str, expected: Any) -> bool:
        return bool(expected.search(f" {_spaced(answer)}"))


class Number(Ready):
    """The first number of the final part (`####`, `\\boxed{}`), or without such a part the last one of the answer.

    Args:
        tolerance: largest difference to a right number.
    """

    def __init__(self, tolerance: float = 0.0) -> None:
        self._tolerance = Fraction(tolerance)

    def expected(self, right: Any) -> Fraction:
        return _right_number(right)

    def is_right(self, answer: str, expected: Any) -> bool:
        number = _final_number(answer)
        return number is not None and abs(number - expected) <= self._tolerance


class Gsm8k(Ready):
    """The first number of the final part (`####`, `\\boxed{}`); an answer without such a part is wrong."""

    def expected(self, right: Any) -> Fraction:
        return _right_number(right)

    def is_right(self, answer: str, expected: Any) -> bool:
        return final_part(answer) is not None and _final_number(answer) == expected


class Boxed(Ready):
    """The last `\\boxed{}`, apart from spaces, case and the typesetting of LaTeX, or with an equal number."""

    def expected(self, right: Any) -> tuple[str, Fraction | None]:
        return _unset(_last_box(str(right)) or str(right))

    def is_right(self, answer: str, expected: Any) -> bool:
        box = _last_box(answer)
        text, number = (None, None) if box is None else _unset(box)
        return text is not None and (text == expected[0] or (number is not None and number == expected[1]))


class Choice(Ready):
    """A letter: of the final part, else after "answer is" or "Answer:", else alone on the last line, else at the
    beginning, as in "(B)" and "B. Rome"."""

    def expected(self, right: Any) -> str:
        if isinstance(right, int) and not isinstance(right, bool) and 0 <= right < 26:
            return chr(ord("A") + right)
        letter = _LONE_LETTER.fullmatch(str(right))
        if letter is None:
            raise ValueError(f"its answer is {right!r:.60}; expected a letter, or a whole number from 0 (0 is A)")
        return letter[1].upper()

    def is_right(self, answer: str, expected: Any) -> bool:
        part, (*_, last) = final_part(answer), ["", *answer.strip().split("\n")]
        if part is not None:
            words = _WORDS.sub(r"\1", part)
            letter = _LONE_LETTER.fullmatch(words) or _FIRST_LETTER.match(words)
        else:
            *_, named = [None, *_NAMED_LETTER.finditer(answer)]
            letter = named or _LONE_LETTER.fullmatch(last) or _FIRST_LETTER.match(answer)
        return letter is not None and letter[1].upper() == expected


class Regex(Ready):
    """A pattern of Python's `re`.

    Args:
        pattern: its last match (its first group, if it has one) must be the right answer, compared as by `Exact`; None:
            the right answer is a pattern that the answer must match somewhere.
    """

    def __init__(self, pattern: str | None = None) -> None:
        self._pattern = None if pattern is None else _compiled(pattern)

    def expected(self, right: Any) -> Any:
        return _compiled(str(right)) if self._pattern is None else plain(str(right))

    def is_right(self, answer: str, expected: Any) -> bool:
        if self._pattern is None:
            return bool(expected.search(answer))
        *_, last = [None, *self._pattern.finditer(answer)]
        return last is not None and bool(plain(last[min(1, self._pattern.groups)] or "") == expected)


def right_answers(row: Mapping[str, Any]) -> Sequence[Any]:
    """All right answers of a row; raises ValueError if there is none."""
    right = row.get("answer")
    several = right if isinstance(right, (list, tuple)) else [right]
    if not several or any(one is None or isinstance(one, Mapping) for one in several):
        raise ValueError(f"its answer is {right!r:.60}; expected a text, a number, or a list of them")
    return several


def plain(text: str) -> str:
    """A text without differences of case, white space, marks around it (`**`, quotes, `$`) and a full stop."""
    short = _spaced(text).strip(_AROUND).removesuffix(".").strip(_AROUND)
    return short or text.strip()


def final_part(text: str) -> str | None:
    """The content of the last whole `\\boxed{}`, or the line after the last `####`, whichever is later; else None."""
    for mark in reversed(list(_MARKS.finditer(text))):
        part = mark[1] if mark[1] is not None else _braced(text[mark.end() :])
        if part is not None:
            return part
    return None


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
    found = [_value(match[0]) for match in _NUMBER.finditer(re.sub(r"(-?)\s*[$€£]\s*", r" \1", text))]
    return [number for number in found if number is not None]


def _value(text: str) -> Fraction | None:
    above, _, below = text.replace(",", "").partition("/")
    divisor = Fraction(Decimal(below or "1"))
    return Fraction(Decimal(above)) / divisor if divisor else None


def _final_number(text: str) -> Fraction | None:
    part = final_part(text)
    found = numbers(text if part is None else part)
    return None if not found else found[-1 if part is None else 0]


def _right_number(right: Any) -> Fraction:
    number = _final_number(str(right))
    if number is None:
        raise ValueError(f"its answer is {right!r:.60}, which has no number")
    return number


def _unset(latex: str) -> tuple[str, Fraction | None]:
    """LaTeX without its typesetting, and its value if it is one number."""
    text = _WORDS.sub(r"\1", latex)
    text = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[!,;: ]|\\?[$%]|\^\{?\\circ\}?|\s", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).removesuffix(".").casefold()
    value = re.fullmatch(r"-?(?:[\d.,]|\{,\})+|-?[\d.]+/[\d.]+|-?\\frac\{[\d.]+\}\{[\d.]+\}", text)
    found = numbers(text) if value else []
    return text, found[0] if len(found) == 1 else None


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r:.60} is no regular expression: {error}") from None
