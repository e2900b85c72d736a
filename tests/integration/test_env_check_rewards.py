"""`env check` of graders that score no right answer, hide an exception, or do not read the answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.ors_server import rules
from xp.checks.env_check.measure import measure
from xp.checks.env_check.report import EnvReport, report
from xp.checks.env_check.watch import Watch
from xp.envs.config import load_provider
from xp.spec.env import READY, PromptSource

ROWS = """
def rows():
    return {"train": [{"prompt": str(n), "answer": [str(n), "no"]} for n in range(5)]}
"""
GRADERS = {
    "hides": """
def parsed(answer):
    if not answer:
        return None
    return answer.nothing

def grade(answer, row):
    assert next(iter([1])) == 1
    try:
        return float(parsed(answer) == row["answer"])
    except Exception:
        return 0.0
""",
    "never": "def grade(answer, row):\n    return 0.0\n",
    "some": """
def grade(answer, row):
    try:
        return float(answer in row["answer"] and 1 / abs(int(answer) - 3) > 0)
    except Exception:
        return 0.0
""",
    "right": "def grade(answer, row):\n    return float(answer in row['answer'])\n",
}


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, grader: str) -> EnvReport:
    (tmp_path / f"grader_{name}.py").write_text(GRADERS.get(name, "") + ROWS)
    monkeypatch.syspath_prepend(tmp_path)
    config = rules(
        provider="local", grader=grader, rows=f"grader_{name}:rows", prompt=PromptSource.LIVE
    )
    provider = load_provider(config, os.environ)
    *_, found = measure(
        provider,
        config,
        "train",
        num_tasks=2,
        group_size=2,
        environ=os.environ,
        watch=Watch("check"),
    )
    provider.close()
    return report(
        config,
        found,
        group_size=2,
        max_prompt_tokens=100,
        count_tokens=None,
    )


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        (
            "hides",
            [
                "5 of 5 episodes of right answers do not score above 0: the first exception in the grader, which it hides,"
                " is AttributeError: 'str' object has no attribute 'nothing' (grader_hides.py:5)",
                "the reward does not depend on the actions",
            ],
        ),
        ("never", ["score above 0; correct", "all score 0;"]),
        ("some", ["1 of 5 episodes of right answers do not score above 0: ", "ZeroDivisionError"]),
        ("right", []),
    ],
)
def test_a_grader_that_cannot_teach_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, faults: list[str]
) -> None:
    found = checked(tmp_path, monkeypatch, name, f"grader_{name}:grade")
    text = "\n".join(found.faults)
    assert [fault for fault in faults if fault not in text] == []
    assert bool(text) == bool(faults)


def test_a_grader_whose_reward_is_a_judges_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked(tmp_path, monkeypatch, "none", READY["none"]).faults == ()
