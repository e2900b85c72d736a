"""`env check`: policies without a model, and what is said of an environment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.envs_under_test.silent import Slow
from tests.support.graded_rules import graded
from tests.support.ors_server import COUNTER, rules
from tests.support.sections import replace, reward_rule
from xp.checks.env_check import watch
from xp.checks.env_check.measure import measure
from xp.checks.env_check.policy import faults_of
from xp.checks.env_check.report import EnvReport, report
from xp.checks.env_check.watch import Watch
from xp.cli.environments import env_command
from xp.cli.parser import parse
from xp.envs.base import ToolSpec
from xp.envs.config import EnvConfig, load_provider
from xp.errors import ExitCode
from xp.spec.dialect import Dialect
from xp.spec.env import PromptSource

DRAWN = "tests.envs_under_test.drawn"
DRAWN_ROWS = "tests.graders_under_test.drawn_rows"


@pytest.mark.parametrize(
    ("tool", "fault"),
    [
        (ToolSpec("read file", "x", {}), "letters"),
        (ToolSpec("f", "x", {"properties": {}, "required": ["y"]}), "not declared"),
        (ToolSpec("f", "x", {"default": float("nan")}), "not JSON"),
    ],
)
def test_a_tool_that_would_break_something_is_named(tool: ToolSpec, fault: str) -> None:
    assert fault in " ".join(faults_of(tool))


def checked(config: EnvConfig, num_tasks: int = 2, group_size: int = 3) -> EnvReport:
    provider = load_provider(config, os.environ)
    how: Any = {
        "num_tasks": num_tasks,
        "group_size": group_size,
        "environ": os.environ,
        "watch": Watch("check"),
    }
    *_, found = measure(provider, config, "train", **how)
    provider.close()
    return report(
        config,
        found,
        group_size=group_size,
        max_prompt_tokens=3,
        count_tokens=lambda m, t: len(m) + len(t),
    )


def test_an_environment_is_measured_and_its_faults_are_told() -> None:
    found = checked(rules(serve=COUNTER, retries_per_episode=0, prompt=PromptSource.LIVE))
    assert found.facts["tasks"] == "700 in train, 20 in test"
    assert "crash" in found.facts["tools"]
    assert any("void" in fault and "ToolCrashed" in fault for fault in found.faults)
    assert any("longer than training.max_prompt_tokens=3" in warning for warning in found.warnings)


def test_a_prompt_is_measured_without_tools_where_calls_are_text() -> None:
    silent = rules(provider="tests.envs_under_test.silent:Silent", prompt=PromptSource.LIVE)
    assert not checked(silent).facts["prompt"].startswith("3 to 3 tokens")
    assert (
        checked(replace(silent, dialect=Dialect.ACTION))
        .facts["prompt"]
        .startswith("3 to 3 tokens, of 3")
    )


@pytest.mark.parametrize(("splits", "split"), [("train", "train"), ("test", "test"), ("", "train")])
def test_an_environment_without_tasks_is_at_fault(splits: str, split: str) -> None:
    config = rules(provider="tests.envs_under_test.silent:Empty", variant=splits)
    assert [fault.partition(";")[0] for fault in checked(config).faults] == [
        f"it has no tasks in split {split}"
    ]


def test_an_environment_that_scores_nothing_is_at_fault() -> None:
    config = replace(
        graded("Higher"),
        max_turns=1,
        prompt=PromptSource.LIVE,
        reward=reward_rule(rules().reward.reduction),
    )
    assert not any("scored" in fault for fault in checked(config).faults)
    silent = rules(provider="tests.envs_under_test.silent:Silent", prompt=PromptSource.LIVE)
    assert any("no step of any episode was scored" in fault for fault in checked(silent).faults)


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (rules(serve=f"{DRAWN}:Shuffled"), "fake/train/0 in another process"),
        (
            rules(provider="local", grader=f"{DRAWN_ROWS}:Dealt", rows=f"{DRAWN_ROWS}:rows"),
            "fake/train/0 in a second session",
        ),
    ],
)
def test_another_prompt_is_a_fault_unless_it_is_live(config: EnvConfig, place: str) -> None:
    def faults(config: EnvConfig) -> list[str]:
        return [
            fault
            for fault in checked(config, num_tasks=1, group_size=1).faults
            if "prompt" in fault
        ]

    (fault,) = faults(config)
    assert place in fault
    assert "expected '" in fault
    assert "set env.prompt=live" in fault
    if config.serve is None:
        assert faults(replace(config, prompt=PromptSource.LIVE)) == []


def check_command(words: list[str]) -> int:
    """Run a `python -m xp env` command; raises XpError."""
    return env_command(parse(["env", *words]))


def test_the_command_checks_each_member_and_says_so_by_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "check",
        "env=gsm8k_mini",
        "tasks=1",
        "training.group_size=2",
        "--json",
        "--seconds",
        "1000",
    ]
    assert check_command(words) == ExitCode.OK
    reports = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in reports] == ["gsm8k_mini"]
    assert reports[0]["facts"]["right answers"] == "320 of 320 right answers score 1"
    assert reports[0]["facts"]["tasks"] == "256 in train, 64 in test"


MODULE = """
import os

class Sums:
    def rows(self):
        return {"train": [{"prompt": str(n), "answer": str(n % 2)} for n in range(50)]}

    def grade(self, answer, row):
        return float(answer == "1" == row["answer"]) * float(os.environ.get("SUMS_FACTOR", 1))
"""


def test_answers_of_rows_are_graded_and_unset_variables_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_sums.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SUMS_FACTOR", "1")
    found = checked(rules(provider="local", grader="my_sums:Sums"))
    assert (
        found.facts["right answers"]
        == "20 of 40 right answers, written as they are, score 1, 20 x 0"
    )
    (warning,) = [one for one in found.warnings if "reads" in one]
    assert (
        "reads SUMS_FACTOR, which is set in this shell and absent in its process; pass it by XP_PASS_ENV"
        in warning
    )


def test_the_solve_beside_a_class_is_played() -> None:
    serve = "xp.envs.builtin.whodunit_mini:WhodunitMini"
    found = checked(rules(serve=serve, max_turns=12, prompt=PromptSource.LIVE))
    assert found.facts["`solve`"] == "2 of 2 episodes score 1"
    assert "slowest" in found.facts["turn takes"]


def test_a_server_that_is_not_there_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["check", "http://127.0.0.1:9", "env.limits.create_timeout_s=1.0"]
    assert check_command(arguments) == ExitCode.ENVIRONMENT
    assert "does not answer" in capsys.readouterr().out


class Clock:
    """The time, to which an hour is added when it has been read often enough while a slow session opens."""

    def __init__(self) -> None:
        self._reads = 0

    def monotonic(self) -> float:
        self._reads += Slow.is_opening.is_set()
        return time.monotonic() + (3600.0 if self._reads > 20 else 0.0)


def test_a_check_of_a_slow_environment_ends_and_tells_what_it_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.05)
    monkeypatch.setattr(watch, "time", Clock())
    Slow.is_opening.clear()
    provider = "env.provider=tests.envs_under_test.silent:Slow"
    began = time.monotonic()
    arguments = ["check", "env=openreward", provider, "tasks=2", "--seconds", "3600", "--json"]
    assert check_command(arguments) == ExitCode.ENVIRONMENT
    assert time.monotonic() - began < 300
    said = capsys.readouterr()
    (found,) = json.loads(said.out)
    assert found["stopped"].startswith("opening two sessions on task 2 of 2, for ")
    assert found["facts"]["tasks"] == "3 in other"
    assert found["facts"]["sessions"] == "2 of 2 opened"
    assert "opening two sessions on task 1 of 2" in said.err
    assert "still opening two sessions on task 2 of 2" in said.err
