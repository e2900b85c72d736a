"""Answer and right answer have one reader: math-verify's own pairs, right answers that score themselves, and hangs."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.ors_server import rules
from tests.support.tables import rows
from xp.composition import compose
from xp.envs.graded import GradedProvider
from xp.errors import XpError
from xp.lib.load import load_object
from xp.planning.stages import prepare_config
from xp.spec.env import READY
from xp.tasks.prepare import prepare

PAIRS: list[tuple[str, str, int]] = json.loads(
    (Path(__file__).parents[1] / "recorded/math_verify_pairs.json").read_text()
)["pairs"]


def bare(text: str) -> str:
    """A text as data sets have it: without the dollar signs or the box around all of it."""
    text = text.strip()
    if inside := re.fullmatch(r"\$\$?([^$]*)\$\$?", text, re.DOTALL):
        text = inside[1].strip()
    inside = re.fullmatch(r"\\boxed\{(.*)\}\.?", text, re.DOTALL)
    depths = [0]
    for character in inside[1] if inside else "":
        depths.append(depths[-1] + {"{": 1, "}": -1}.get(character, 0))
    return inside[1].strip() if inside and min(depths) >= 0 else text


@pytest.mark.parametrize(
    ("share", "most"), [(4, (2, 4, 4)), pytest.param(1, (6, 17, 17), marks=pytest.mark.slow)]
)
def test_math_verifys_own_pairs_are_scored_as_it_scores_them_with_and_without_dollar_signs(
    share: int, most: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")
    from xp.envs.builtin import math_verified

    monkeypatch.setattr(math_verified, "parse", lru_cache(None)(math_verified.parse))

    def score(right: str, answer: str) -> float | None:
        try:
            return math_verified.math(answer, {"answer": right})
        except ValueError:
            return None

    pairs = PAIRS[::share]
    differing = [
        [pair for pair in pairs if score(*pair[:2]) != pair[2]],
        [pair for pair in pairs if score(bare(pair[0]), pair[1]) != pair[2]],
        [pair for pair in pairs if score(bare(pair[0]), f"\\boxed{{{bare(pair[1])}}}") != pair[2]],
    ]
    assert len(PAIRS) == 252
    assert [
        len(some) <= limit
        for some, limit in zip(
            differing,
            most,
            strict=True,
        )
    ] == [True] * 3, differing


@pytest.mark.parametrize(("graders", "right", "lines"), rows("answers"))
def test_an_answer_gets_what_a_person_would_give(
    graders: str, right: str, lines: list[str]
) -> None:
    if graders == "math":
        pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")
    row = {"answer": right.replace("␊", "\n")}
    for grade in (load_object(READY[name]) for name in graders.split()):
        for reward, _, answer in (line.partition(" ") for line in lines):
            assert grade(answer.replace("␊", "\n"), row) == float(reward), answer


@pytest.mark.parametrize(
    ("grader", "right", "answer", "reward"),
    [
        ("exact", 5.0, "5", 1),
        ("exact", True, "no", 0),
        ("exact", ["4", "four"], "four", 1),
        ("exact", "caf\u00e9", "cafe\u0301", 1),
        ("number", 1800, r"#### \$1{,}800", 1),
        ("gsm8k", 1800, r"#### \$1{,}800", 1),
        ("number", "9" * 6000, "9" * 6000, 1),
        ("gsm8k", "9" * 6000, "9" * 6000, 0),
        ("choice", 0.0, "A", 1),
        ("choice", 1, "B", 1),
    ],
    ids=range(10),
)
def test_a_right_answer_may_be_no_text_or_a_long_one(
    grader: str, right: Any, answer: str, reward: float
) -> None:
    assert load_object(READY[grader])(answer, {"answer": right}) == reward


def provider_of(tmp_path: Path, grader: str, rights: list[Any], **arguments: Any) -> GradedProvider:
    rows = [{"prompt": f"{number}?", "answer": right} for number, right in enumerate(rights)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = rules(
        provider="local",
        grader=READY[grader],
        rows=str(tmp_path / "rows.jsonl"),
        grader_args=arguments,
    )
    return GradedProvider(config, {})


@pytest.mark.parametrize(
    ("grader", "rights"),
    [
        ("exact", ["Paris", "", float("nan")]),
        ("contains", ["C++", " "]),
        (
            "number",
            ["1,800", "10^3", "#### 5", "0,111", "6 + 9i", "3 of 4", "12:30", r"3\sqrt{13}", "2/0"],
        ),
        ("gsm8k", ["72", r"So \boxed{3}", "none"]),
        ("boxed", [r"\frac{1}{2}", r"It is \boxed{x}", "}"]),
        ("choice", ["(b)", 2, "Paris"]),
        ("regex", [r"\d+", "("]),
        ("math", [r"3\sqrt{13}", "no solution", "1,000", r"$\frac{1}{2}$", r"\frac{1}{"]),
    ],
)
def test_a_right_answer_that_its_grader_does_not_give_1_is_refused_with_its_row(
    tmp_path: Path, grader: str, rights: list[Any]
) -> None:
    if grader == "math":
        pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")
    good = {
        "exact": 1,
        "contains": 1,
        "number": 3,
        "math": 4,
        "regex": 1,
    }.get(grader, 2)
    provider = provider_of(tmp_path, grader, rights)
    with pytest.raises(
        XpError,
        match=rf"{len(rights) - good} of {len(rights)} right .*\nrow {good + 1} of split train: ",
    ):
        provider.check_answers()
    provider._loaded = {"test": provider._rows()["train"][:good]}
    assert provider.check_answers() == f"{good} of {good} right answers score 1"
    provider.close()


def test_prepare_scores_the_right_answers_of_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.csv"
    words = ["env=graded", f"env.rows={tmp_path}/rows.csv", "env.grader=number"]
    file.write_text("prompt,answer\n" + "".join(f"{number}?,{number} m\n" for number in range(40)))
    config = prepare_config(compose(words))
    prepare(config, {}, tmp_path)
    assert "40 of 40 right answers score 1\n" in capsys.readouterr().out
    with file.open("a") as opened:
        opened.write("41?,forty-one\n")
    with pytest.raises(XpError, match="row 41 of split train: its answer is 'forty-one'"):
        prepare(prepare_config(compose(words)), {}, tmp_path)
