"""Ready graders of one answer, named by `env.grader`: 1 if it agrees with a right answer of the row, else 0.

docs/environments.md has the table of what counts. A list in the column `answer` has several right answers. Answer and
right answer have one reader; a right answer that it cannot read whole is a ValueError. Preparation scores every right
answer itself, and refuses rows where it does not get 1 (xp.envs.graders).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import wraps
from numbers import Number
from typing import Any, Final

from xp.envs.call_data import without_thinking

TASKS_VERSION = "2"
"""Version of the right answers that preparation accepts; no other change of this file must prepare tasks anew."""

_NUMBER: Final = re.compile(
    r"(?:(?<![\w)\].}])[-+])?(?:(?<![\w.^])(?:[1-9]\d{0,2}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w^])\.\d+)"
    r"(?:[eE][-+]?\d{1,3}(?!\d))?(?:/\d+(?:\.\d+)?)?"
)
_FRACTION: Final = re.compile(
    r"(?<!\d)(\d*)\\[dtc]?frac\s*(?:(\d)|\{(-?\d+(?:\.\d+)?)\})\s*(?:(\d)|\{(\d+(?:\.\d+)?)\})"
    r"|(?<![\w.,/])(\d+) (\d+)/(\d+)(?![\d/])"
)
_POWER_OF_TEN: Final = re.compile(
    r"(?:(?<=\d)\s*(?:\\times|\\cdot|[*\u00d7\u00b7])\s*|(?<![\w.]))10\^\{?(-?\d{1,3})\}?"
)
_GOES_ON: Final = re.compile(
    r"\s*(?:\\[A-Za-z]|[\^_\u00b2\u00b3\u00b9\u2070-\u207f]|[-+*/\u00d7\u00f7\u00b7,]\s*[-\d.(\\{]|[-+*/]\s*[inkxyz]\b)"
    r"|[inkxyz](?![^\W_])|[(:]\d|\s+\d"
)
"""Text after a number that is only a part of an expression."""
_BEGAN: Final = re.compile(
    r"\\[A-Za-z]|(?:[*/\u00d7\u00f7\u00b7^_]|\w\(|(?<!\\)\{|[\w)\]}]\s*[-+])\s*$"
)
"""Text before such a number."""
_EQUALS: Final = re.compile(r"(?<!\()=(?=\s*[-+$\\.\d])")
_MARKS: Final = re.compile(r"####\s*|\\boxed\s*\{|\\?[{}]")
_LONE_LETTER: Final = re.compile(r"\W*([A-Za-z])\W*")
_FIRST_LETTER: Final = re.compile(r"\W*([A-Z])(?:[).:,*\]]|\s*\n)")
_NAMED_LETTER: Final = re.compile(
    r"\b(?i:answer|(?:correct|right|best)\s+(?:option|choice)|(?:choose|pick|select))\b(?i:\s+is)?"
    r"(?i:[\s:*]*\b(?:option|choice)\b)?[\s:*_$(\[\"'-]*(?:([A-Z]|[b-hj-z])(?![\w'])|([ai])(?=[).,:*\]\"']|\s*(?:\n|$)))"
)
_RIGHT_LETTER: Final = re.compile(r"\b([A-Z])\b[)\]*]*\s+is\s+(?:the\s+)?(?:correct|right|best)\b")
_NOT_BUT: Final = re.compile(
    r"\bnot\s+(?:(?i:option|choice)\s+)?[*(]*[A-Z]\b[*)]*\s*,?\s*(?:but|rather)(?:\s+rather)?\s+",
    re.I,
)
_OR_ANOTHER: Final = re.compile(
    r"[)\]*]*\s*(?:\b(?i:or|and)\b|[/&])\s*[*(\[]*"
    r"(?:[B-HJ-Z]\b(?!')|[AI]\b(?!['\u2019])(?!\s+(?!(?:is|are|can|could|may|might|would)\b)[a-z]))"
)
"""A second letter. "I am" and "A short" are words, "A is" is a letter."""
_TWO_LETTERS: Final = re.compile(r"\W*[A-Za-z]\W*(?:\b(?:or|and)\b\W*|[/&,]\s*)[A-Za-z]\W*", re.I)
_HEADING: Final = re.compile(r"^#+[ \t]+(?=[^\n]*\n\s*\S)", re.M)
"""Mark of a heading of Markdown: a line with text below. A final `#### B` has none."""
_WORDS: Final = re.compile(r"\\(?:text|mathrm|mathbf|textbf|textrm|mbox)\s*\{([^{}]*)\}")
_TYPESETTING: Final = re.compile(
    r"\\(?:left|right|displaystyle|quad|approx)(?![A-Za-z])|\^\{?\\circ\}?|\\[!,;: ]"
)
_AROUND: Final = " \t*_`\"'\u201c\u201d\u2018\u2019$"


def ready(
    as_answer: Callable[[Any], str] | None = str, limit_s: float | None = None
) -> Callable[[Callable[..., bool]], Callable[..., float]]:
    """Makes a grader of the comparison of an answer with one right answer.

    Args:
        as_answer: from a right answer to an answer that must get 1. None means that it is only read.
        limit_s: seconds after which an answer counts 0, for a comparison that may not end (xp.envs.graded).
    """

    def of(agrees: Callable[..., bool]) -> Callable[..., float]:
        @wraps(agrees)
        def grade(answer: str, row: Mapping[str, Any], **arguments: Any) -> float:
            answer = without_thinking(answer)
            return float(any(agrees(answer, right, **arguments) for right in right_answers(row)))

        vars(grade).update(right_answers=right_answers, as_answer=as_answer, limit_s=limit_s)
        return grade

    return of


def right_answers(row: Mapping[str, Any]) -> list[Any]:
    """The right answers of a row; raises ValueError if it has none, or an empty one."""
    right = row.get("answer")
    answers = list(right) if isinstance(right, list | tuple) else [right]
    for entry in answers or [None]:
        is_nan = isinstance(entry, float) and not math.isfinite(entry)
        if is_nan or not isinstance(entry, str | Number) or not str(entry).strip():
            raise ValueError(
                f"its answer is {right!r:.60}; expected a text, a number, or a list of them"
            )
    # A column with a gap, or of a spreadsheet, has 5.0 for 5.
    return [
        int(entry) if isinstance(entry, float) and entry.is_integer() else entry
        for entry in answers
    ]


def none(answer: str, row: Mapping[str, Any]) -> float:  # noqa: ARG001
    """0 for every answer: the reward is that of a judge or of a function."""
    return 0.0


@ready()
def exact(answer: str, right: Any) -> bool:
    """The whole answer, apart from case, white space, marks around it and a full stop; or the number of a number."""
    if plain(answer) == plain(str(right)):
        return True
    value = _value(plain(answer))
    return isinstance(right, int | float) and value is not None and value == _value(str(right))


@ready()
def contains(answer: str, right: Any) -> bool:
    """The right answer anywhere, as whole words or a whole number."""
    text = _spaced(str(right)).strip()
    if text[0].isdigit():
        before = r"(?<!\w)(?<!\d[.,])(?<![^\w]-)"
    elif text[0].isalnum():
        before = r"(?<!\w)"
    else:
        before = ""
    if text[-1].isdigit():
        after = r"(?!\w)(?![.,]\d)"
    elif text[-1].isalnum():
        after = r"(?!\w)"
    else:
        after = ""
    return bool(re.search(before + re.escape(text) + after, f" {_spaced(answer)}"))


@ready()
def number(answer: str, right: Any, tolerance: float = 0.0) -> bool:
    """The first number of the final part (`####`, `\\boxed{}`), or without such a part the last one of the answer."""
    expected = _right_number(right)
    given = _number_of(answer)
    return given is not None and abs(given - expected) <= Fraction(tolerance)


@ready(lambda right: str(right) if final_part(str(right)) else f"#### {right}")
def gsm8k(answer: str, right: Any) -> bool:
    """The first number of the final part (`####`, `\\boxed{}`); an answer without such a part is wrong."""
    expected = _right_number(right)
    return final_part(answer) is not None and _number_of(answer) == expected


@ready(lambda right: str(right) if final_part(str(right), only_box=True) else f"\\boxed{{{right}}}")
def boxed(answer: str, right: Any) -> bool:
    """The last `\\boxed{}`, apart from spaces, case and the typesetting of LaTeX, or with an equal number."""
    box = final_part(answer, only_box=True)
    right_box = final_part(str(right), only_box=True)
    if box is None:
        return False
    text, right_text = map(_unset, (box, str(right) if right_box is None else right_box))
    return text == right_text or (_value(text) is not None and _value(text) == _value(right_text))


@ready(lambda right: _letter(right))
def choice(answer: str, right: Any, marks: Sequence[str] = ()) -> bool:
    """A letter: of the final part, else after "answer is" or "Answer:", else alone on the last line, else at the
    beginning, as in "(B)" and "B. Rome". An answer after the final part counts more; two letters ("A or B") are wrong.

    Args:
        marks: texts of other languages that stand for "Answer:".
    """
    expected = _letter(right)
    if marks:
        mark = "|".join(map(re.escape, marks))
        answer = re.sub(mark, " Answer:", answer, flags=re.I).replace("\uff1a", ":")
        # Japanese and Korean write the next word without a space.
        answer = re.sub(r"(?<=[A-Z])(?=[\u3040-\u9fff\uac00-\ud7a3])", " ", answer)
    answer = _NOT_BUT.sub("", answer)
    box = final_part(_HEADING.sub("", answer))
    after = "" if box is None else answer.rpartition(box)[2]
    parts = [answer] if box is None else [box, answer]
    if any(_NAMED_LETTER.finditer(after)):
        parts = [after]
    for part in parts:
        words = unwrapped(part)
        if _TWO_LETTERS.fullmatch(words):
            return False
        letter = _chosen(words, answer.strip().rpartition("\n")[2] if part is answer else words)
        if letter is not None:
            is_ambiguous = _OR_ANOTHER.match(words, letter.end(letter.lastindex or 1))
            choice = letter[1] or letter[letter.lastindex or 1]
            return is_ambiguous is None and choice.upper() == expected
    return False


def _chosen(words: str, last_line: str) -> re.Match[str] | None:
    """The letter that a text names, the last one first, or that is alone on its last line, or that it begins with."""
    *_, named = [None, *_RIGHT_LETTER.finditer(words), *_NAMED_LETTER.finditer(words)]
    return named or _LONE_LETTER.fullmatch(last_line) or _FIRST_LETTER.match(words)


@ready(None, limit_s=10.0)
def regex(answer: str, right: Any, pattern: str | None = None) -> bool:
    """A pattern whose last match (its first group, if it has one) is the right answer, compared as by `exact`; without
    one, the right answer is a pattern that the answer must match somewhere."""
    try:
        compiled = re.compile(str(right) if pattern is None else pattern)
    except re.error as error:
        raise ValueError(
            f"{str(pattern or right)!r:.60} is no regular expression: {error}"
        ) from None
    *_, last = [None, *compiled.finditer(answer)]
    if pattern is None or last is None:
        return last is not None
    return plain(last[min(1, compiled.groups)] or "") == plain(str(right))


def _letter(right: Any) -> str:
    is_position = isinstance(right, int) and not isinstance(right, bool) and 0 <= right < 26
    letter = _LONE_LETTER.fullmatch(chr(ord("A") + right) if is_position else str(right))
    if letter is None:
        raise ValueError(
            f"its answer is {right!r:.60}; expected a letter, or a whole number from 0 (0 is A)"
        )
    return letter[1].upper()


def plain(text: str) -> str:
    """A text without differences of case, white space, marks around it (`**`, quotes, `$`) and a full stop."""
    return _spaced(text).strip(_AROUND).removesuffix(".").strip(_AROUND) or text.strip()


def unwrapped(latex: str) -> str:
    """LaTeX without the commands around words, such as `\\text{}`."""
    return _WORDS.sub(r"\1", latex)


def final_part(text: str, *, only_box: bool = False) -> str | None:
    """The content of the last whole `\\boxed{}`, or the line after the last `####`, whichever is later; else None."""
    begin = -1
    end = -1
    opened = list[int]()
    for mark in _MARKS.finditer(text):
        if mark[0].startswith("#"):
            if not only_box:
                begin = mark.end()
                end = -1
        elif mark[0] == "}":
            if opened:
                start = opened.pop()
                if start > begin:
                    begin = start
                    end = mark.start()
        elif mark[0] not in (r"\{", r"\}"):  # An escaped one is a character.
            opened.append(-1 if mark[0] == "{" else mark.end())
    if begin < 0:
        return None
    if end < 0:
        return text[begin:].partition("\n")[0]
    return text[begin:end]


def _numerals(text: str) -> str:
    """A text whose numbers have one form each: digits with thousands commas, a decimal point, an exponent, or a/b."""
    for old, new in (
        ("\N{MINUS SIGN}", "-"),
        ("\\$", "$"),
        ("{,}", ","),
        ("\\,", ""),
        ("\\!", ""),
        ("**", ""),
    ):
        text = text.replace(old, new)
    text = _POWER_OF_TEN.sub(
        lambda ten: f"e{ten[1]}" if ten[0][0] != "1" else f"1e{ten[1]}", unwrapped(text)
    )
    return re.sub(
        r"(-?)[$€£]\s*", r" \1", _FRACTION.sub(_plain_fraction, _TYPESETTING.sub("", text))
    )


def _plain_fraction(latex: re.Match[str]) -> str:
    whole, above, below = (group for group in latex.groups() if group is not None)
    if whole:
        return f"{Decimal(whole) * Decimal(below) + Decimal(above)}/{below}"
    return f"{above}/{below}"


def _value(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else."""
    match = _NUMBER.fullmatch(_numerals(text).strip())
    return None if match is None else _fraction(match)


def _fraction(number: re.Match[str]) -> Fraction | None:
    above, _, below = number[0].replace(",", "").partition("/")
    divisor = Fraction(Decimal(below or "1"))
    if divisor:
        return Fraction(Decimal(above)) / divisor
    return None


def _number_of(text: str, *, is_right: bool = False) -> Fraction | None:
    """The first number of the final part, or the last one of a text without it; None where it is part of an expression.

    Args:
        is_right: whether the text is a right answer, which is a final part itself, and has one number alone.
    """
    part = final_part(text)
    is_part = is_right or part is not None
    numerals = _numerals(text if part is None else part)
    if is_part:
        numerals = _EQUALS.split(numerals)[-1]
    numbers = list(_NUMBER.finditer(numerals))
    if not numbers or (is_right and part is None and len(numbers) > 1):
        return None
    number = numbers[0 if is_part else -1]
    is_within = _GOES_ON.match(numerals, number.end()) or (
        is_part and _BEGAN.search(numerals[: number.start()])
    )
    return None if is_within else _fraction(number)


def _right_number(right: Any) -> Fraction:
    value = _number_of(str(right), is_right=True)
    if value is None:
        raise ValueError(f"its answer is {right!r:.60}, which is not one number")
    return value


def _unset(latex: str) -> str:
    """LaTeX without its typesetting."""
    text = re.sub(r"\\?[$%]|\s", "", _TYPESETTING.sub("", unwrapped(latex)))
    text = re.sub(r"\\[dt]frac", r"\\frac", text).removesuffix(".").casefold()
    return re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)


def _spaced(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split()).casefold()
