"""Rules of the diagnosis on metrics as trainings leave them: each names its fault, none speaks of a good run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_runs import FAULTS, Line, changed, good
from tests.support.sections import replace, run_spec
from xp.episode.metrics_file import MetricsFile
from xp.errors import ExitCode, XpError
from xp.spec.training import OnSymptom
from xp.worker.diagnosis.history import Facts, History, ToolUse
from xp.worker.diagnosis.live import SymptomWatch
from xp.worker.diagnosis.rules import symptoms
from xp.worker.diagnosis.symptom import Severity

SPEC = run_spec(
    **{
        f"training__{name}": value
        for name, value in {"warmup_updates": 2, "updates_per_step": 2, "num_steps": 36}.items()
    },
    training__passes_per_step=1,
    training__max_grad_norm=1.0,
)
FACTS = Facts(SPEC.training, ("e",))


def found(lines: list[Line], **parts: Any) -> dict[str, Severity]:
    return {
        one.rule: one.severity
        for one in symptoms(History(lines, parts.pop("facts", FACTS), **parts))
    }


def during(rewards: list[float]) -> list[Line]:
    key = "evaluation/during/reward/avg_raw_reward"
    return [{"step": 5 * at + 5, key: reward} for at, reward in enumerate(rewards)]


def test_a_good_run_alarms_nobody_at_any_of_its_steps() -> None:
    for number in range(1, 37):
        told = found(good(number), evaluations=during([0.3, 0.5, 0.8, 0.9]))
        assert {*told.values()} <= {Severity.NOTE}, number


def test_a_policy_that_ran_away_early_and_stayed_away_is_named() -> None:
    """The median of all steps before is large then, so that the beginning is what counts."""
    assert "kl" in found(changed(good(), training__kl=lambda at: 5.0 if at > 0.35 else 0.02))


REWARDS = (
    ".397 .406 .416 .322 .416 .397 .422 .491 .484 .584 .578 .625 .634 .778 .747 .675 .162 .191 0 0"
)
COLLAPSED = [float(word) for word in REWARDS.split()]
"""Rewards of a real run on SkyRL that played a step ahead, until two steps after its fall."""


def test_a_reward_that_fell_to_nothing_is_named_first() -> None:
    lines = [
        {**line, "reward/avg_raw_reward": reward}
        for line, reward in zip(good(20), COLLAPSED, strict=True)
    ]
    assert [found(lines[:number]) for number in (17, 18)] == [{}, {}]
    (one,) = symptoms(History(lines, FACTS))
    assert one.rule == "collapse"
    assert one.severity == Severity.ALARM
    assert one.step == 20
    assert (
        one.found == "the mean reward is 0.206, after 0.692 at step 16 and 0.391 at the beginning"
    )
    none = {"reward/groups_without_variance": 1.0, "reward/avg_pass_at_8": 0.0}
    silent = [{**line, **none} if line["step"] > 16 else line for line in lines]
    assert list(found(silent)) == ["collapse", "equal_groups"]
    assert list(found([{**line, "training/distill_kl": 0.3} for line in silent])) == ["collapse"]


def test_a_rare_reward_that_stays_rare_is_seldom_called_a_collapse() -> None:
    """64 episodes a step, of which one in twenty is rewarded, over 40 steps: chance alone halves a mean of five."""
    draw = random.Random(1)

    def is_named() -> bool:
        rewards = [sum(draw.random() < 0.05 for _ in range(64)) / 64 for _ in range(40)]
        lines = [
            {"step": at + 1, "reward/avg_raw_reward": reward} for at, reward in enumerate(rewards)
        ]
        return any("collapse" in found(lines[:number]) for number in range(1, 41))

    assert sum(is_named() for _ in range(100)) <= 5


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_else_alarms(fault: str) -> None:
    rule, lines = FAULTS[fault]
    told = found(lines)
    assert rule in told
    assert [
        name for name, severity in told.items() if severity is not Severity.NOTE and name != rule
    ] == []


def test_steps_without_an_update_are_no_part_of_the_warm_up() -> None:
    facts = replace(FACTS, training=replace(FACTS.training, warmup_updates=9))
    lines = [{**line, "training/updates": float(line["step"] <= 10)} for line in good()]
    (symptom,) = [one for one in symptoms(History(lines, facts)) if one.rule == "warm_up"]
    assert "9 of 10 updates of the run are warm-up" in symptom.found


def test_first_steps_after_a_short_warm_up_are_no_symptom() -> None:
    facts = replace(FACTS, training=replace(FACTS.training, warmup_updates=20))
    assert [found(good(number), facts=facts) for number in range(1, 12)] == [{}] * 11


def test_what_is_learned_by_heart_shows_in_held_out_evaluations() -> None:
    assert found(good(), evaluations=during([0.4, 0.41, 0.4, 0.39])) == {
        "memorised": Severity.ALARM
    }


def test_void_episodes_of_one_environment_are_laid_to_it() -> None:
    lines = changed(good(), a__episodes__void=lambda _: 0.0, b__episodes__void=lambda _: 0.08)
    (one,) = symptoms(History(lines, replace(FACTS, members=("a", "b"))))
    assert "in b 8%, elsewhere 0%" in one.found


@pytest.mark.parametrize(
    ("tools", "told"),
    [
        (ToolUse(64, frozenset({"look", "answer"}), {}, 0.1), {"no_tool_call": Severity.BROKEN}),
        (
            ToolUse(640, frozenset({"look", "answer"}), {"answer": 640}, 0.1),
            {"unused_tool": Severity.NOTE},
        ),
        (ToolUse(640, frozenset({"answer"}), {"answer": 640}, 0.7), {"waiting": Severity.NOTE}),
        (
            ToolUse(64, frozenset({"look"}), {}, 0.1, "<tool_call>{'look'}"),
            {"malformed": Severity.BROKEN},
        ),
    ],
)
def test_trajectories_say_how_tools_are_used(tools: ToolUse, told: dict[str, Severity]) -> None:
    assert found(good(), tools=tools) == told


def watched(root: Path, action: str, lines: list[Line]) -> None:
    """A training that writes these lines, step by step."""
    file = root / "metrics.jsonl"
    watch = SymptomWatch(run_spec(training__on_symptom=OnSymptom(action)), file)
    for line in lines:
        metrics = {
            name: value
            for name, value in line.items()
            if isinstance(value, float) and name != "time"
        }
        MetricsFile(file, "train", 1).write(line["step"], metrics)
        watch.line(line["step"], metrics)


def test_a_symptom_is_told_once_while_the_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched(tmp_path, "warn", FAULTS["other weights"][1])
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("xp: symptom")]
    assert len(told) == 1
    assert told[0].startswith(
        "xp: symptom engine_gap: engine and trainer differ by 0.400 nats a token (step 2)."
    )


def test_a_symptom_stops_the_training_where_the_spec_says_so(tmp_path: Path) -> None:
    with pytest.raises(XpError, match=r"symptom engine_gap.*training\.on_symptom=stop") as stopped:
        watched(tmp_path, "stop", FAULTS["other weights"][1])
    assert stopped.value.code is ExitCode.SYMPTOM
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
