"""Runs beside each other: columns for what differs, one table an environment, and a sentence that claims no more."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import held_out_result, leave_evaluation
from tests.support.sweep_runs import leave_run, spec
from xp.__main__ import main
from xp.cli.compare import compare_existing
from xp.errors import ExitCode, XpError
from xp.execution.held_out import HeldOutResult
from xp.execution.leaderboard import (
    PLAIN,
    RunEntry,
    _basis,
    differing,
    leaderboard,
    text,
)
from xp.execution.named import named_runs
from xp.execution.record import RunStatus
from xp.results.evaluation.ranking import sentence
from xp.results.report.comparison import _pairs

RATE = "training.learning_rate"


def leave(outputs: Path, run: str, after: float, *words: str) -> Path:
    return leave_run(spec(outputs, *words), run, RunStatus.SUCCEEDED, after=after)


def with_tasks(run: Path, rewards: Sequence[float], contents: Sequence[str] = ()) -> None:
    """The evaluation with the reward of each of its tasks, and with the digest of its content if there is one."""
    tasks = {f"e/test/{number}": [reward] for number, reward in enumerate(rewards)}
    hashes = dict(zip(tasks, contents, strict=True)) if contents else None
    leave_evaluation(run, after=tasks, hashes=hashes)


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["runs", "compare", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_only_keys_that_differ_are_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, rate, after in (("low", "1e-4", 0.5), ("high", "1e-3", 0.9)):
        leave(tmp_path, run, after, f"{RATE}={rate}")
    head, first, second, _ = shown(capsys, f"outputs={tmp_path}")
    cells = [line.split("\t") for line in (head, first, second)]
    assert cells[0][:3] == ["run", "after", RATE]
    assert [line[:3] for line in cells[1:]] == [
        ["high", "0.900", "0.001"],
        ["low", "0.500", "0.0001"],
    ]


def test_environments_are_ranked_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, "a", 0.9, "env=multiply")
    leave(tmp_path, "b", 0.1)
    leave(tmp_path, "c", 0.2)
    lines = shown(capsys, f"outputs={tmp_path}")
    assert [line for line in lines if line.endswith(":")] == ["multiply:", "whodunit_mini:"]
    assert [line.split("\t")[0] for line in lines if "\t" in line] == ["run", "a", "run", "c", "b"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("sweep-", "sweep-1 sweep-2"),
        ("*-2 other", "sweep-2 other"),
        ("sweep", "sweep"),
        ("", "other sweep sweep-1 sweep-2"),
    ],
)
def test_runs_are_named_by_a_beginning_or_a_pattern(
    words: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("sweep-1", "sweep-2", "other", "sweep"):
        leave(tmp_path, run, 0.5)
    runs = named_runs(tmp_path, words.split(), takes_several=True)
    assert " ".join(run.name for run in runs) == meant
    assert main(["runs", "compare", "swep-1", f"outputs={tmp_path}"]) == ExitCode.RUN_DIR
    assert "did you mean sweep-1?" in capsys.readouterr().err


SCORING = {
    "env.serve": "guess:Guess",
    "env.grader": None,
    "env.reward_fn": None,
    "env.reward.reduction": "sum",
    "code of guess:Guess": "a1",
    "env.options": {},
}
TWICE = {"env.reward_fn": {"rewards:twice": 1.0}, "code of rewards:twice": "b1"}


def scored_by(run: Path, passes: float | None = None, **changes: Any) -> None:
    """The evaluation with a record of what decided its rewards."""
    file = run / "attempt_1/evaluate/after/eval.json"
    value = json.loads(file.read_text())
    value["scoring"] = {"guess": SCORING | changes}
    value["summary"]["env_pass_share"] = passes
    file.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (TWICE, 'env.reward_fn (null or {"rewards:twice": 1.0}) differs'),
        ({"code of guess:Guess": "a2"}, "code of guess:Guess differs"),
    ],
)
def test_rewards_that_are_not_on_one_scale_are_neither_ranked_nor_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    plain = leave(tmp_path, "plain", 0.5)
    other = leave(tmp_path, "twice", 1.0)
    for run, own in ((plain, {}), (other, changes)):
        with_tasks(run, [1.0, 0.0, 0.5], "abc")
        scored_by(run, **own)
    _, first, second, verdict = shown(capsys, f"outputs={tmp_path}")
    assert [first.split("\t")[0], second.split("\t")[0]] == ["plain", "twice"]
    assert (
        verdict
        == f"not ranked, without a verdict: the rewards are not on one scale, since {reason}"
    )
    assert (
        main(["runs", "compare", "plain", "twice", "--paired", f"outputs={tmp_path}"])
        == ExitCode.PLAN
    )
    assert "their rewards are not on one scale" in capsys.readouterr().err
    assert _pairs([plain, other])[0] == []


def test_settings_are_paired_by_seed_and_adjusted_by_the_value_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The seeds differ by 0.4, and their values before training by as much; the settings by about 0.05 on each seed.
    for rate, gain in (("1e-4", (0.30, 0.31, 0.29, 0.30)), ("1e-3", (0.35, 0.37, 0.34, 0.36))):
        for seed, (before, own) in enumerate(zip((0.1, 0.5, 0.3, 0.2), gain, strict=True)):
            run = leave(tmp_path, f"{rate}-{seed}", before + own, f"{RATE}={rate}", f"seed={seed}")
            leave_evaluation(run, before={"e/test/0": [before]})
    lines = shown(capsys, f"outputs={tmp_path}")
    assert lines[-4:-1] == [
        "setting\tmean\tstderr\tn",
        f"{RATE}=0.001\t0.630\t0.006\t4",
        f"{RATE}=0.0001\t0.575\t0.004\t4",
    ]
    assert lines[-1].startswith(
        f"{RATE}=0.001 is highest with 0.630, adjusted by the values before training. "
    )
    assert lines[-1].endswith("on 4 seeds.")
    assert f"{RATE}=0.001 is better than {RATE}=0.0001 by 0.055" in lines[-1]


def test_tasks_of_one_name_and_another_content_are_not_paired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = leave(tmp_path, "one", 0.5)
    other = leave(tmp_path, "other", 0.6)
    with_tasks(one, [1.0, 0.0] * 3, "abcdef")
    with_tasks(other, [0.0, 1.0] * 3, "aBCDEf")
    assert (
        main(["runs", "compare", "one", "other", "--paired", f"outputs={tmp_path}"])
        == ExitCode.PLAN
    )
    told = capsys.readouterr().err
    assert "one and other: 4 tasks have another content under the same name" in told
    assert "e/test/1, e/test/2, e/test/3 and 1 more" in told
    assert "python -m xp eval run=one,other" in told
    assert _pairs([one, other])[0] == []
    with_tasks(other, [0.0, 1.0] * 3, "abcdef")
    assert _pairs([one, other])[1] == []
    lines = shown(capsys, "one", "other", "--paired", f"outputs={tmp_path}")
    assert not any("content" in line for line in lines)


FORGED = "x\n| forged | 1.0 |<img src=x>![a](http://b/c)\\| y"
QUOTED = '=HYPERLINK("http://b/c")'


def with_member(run: Path, name: str) -> None:
    """Renames the environment in the plan of a run, as another hand could."""
    value = spec(run.parent.parent).model_dump(mode="json")
    value["env"]["members"] = dict.fromkeys([name], *value["env"]["members"].values())
    (run / "attempt_1/plan.json").write_text(json.dumps({"spec": value}))


def test_a_name_of_a_run_forges_no_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_member(leave(tmp_path, "a", 0.9), FORGED)
    with_member(leave(tmp_path, "b", 0.1), QUOTED)
    markdown = shown(capsys, "--markdown", f"outputs={tmp_path}")
    assert len(markdown) == 4
    assert {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in markdown} == {len(PLAIN) + 1}
    assert "<img" not in "".join(markdown)
    assert "](" not in "".join(markdown)
    plain = shown(capsys, f"outputs={tmp_path}")
    assert [line for line in plain if line.startswith("|")] == []


def row(
    run: str, seed: int | None, before: float | None, after: float | None, **fields: Any
) -> RunEntry:
    return RunEntry(run, seed=seed, before=before, after=after, **fields)


@pytest.mark.parametrize(
    ("rewards", "limits", "interval"),
    # Student's t with 2 degrees of freedom: 4.303 standard errors of 0.1 / sqrt(3).
    [
        ((0.4, 0.5, 0.6), (None, None), "95 % 0.252 to 0.748 over seeds"),
        ((0.4, 0.5, 0.6), (0.3, 0.7), "95 % 0.300 to 0.700 over seeds"),
        ((0.5, 0.5), (None, None), "the same for each"),
    ],
)
def test_seeds_of_one_spec_have_an_interval(
    tmp_path: Path,
    rewards: tuple[float, ...],
    limits: tuple[float | None, float | None],
    interval: str,
) -> None:
    rows = []
    for seed, after in enumerate(rewards):
        result = held_out_result(after, limits=limits)
        rows.append(row(f"r{seed}", seed, None, after, result=result))
    line = f"{len(rewards)} seeds of one spec: mean held-out reward 0.500, {interval}"
    assert sentence(tmp_path, [*rows, row("void", 9, None, None)]) == line
    assert sentence(tmp_path, [rows[0], row("void", 9, None, None)]) is None


def test_one_seed_is_compared_task_by_task_without_an_adjustment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, rate, after in (("low", "1e-4", 0.5), ("high", "1e-3", 0.9)):
        with_tasks(
            leave(tmp_path, run, after, f"{RATE}={rate}"),
            [after - number / 100 for number in range(6)],
        )
    start = (
        f"{RATE}=0.001 is highest with 0.875. {RATE}=0.001 is better than {RATE}=0.0001 by 0.400"
    )
    line = shown(capsys, f"outputs={tmp_path}")[-1]
    assert line.startswith(start)
    assert line.endswith(" on 6 tasks.")


def test_settings_on_few_or_no_common_seeds_have_no_better_one(tmp_path: Path) -> None:
    def rows(first: Sequence[int], second: Sequence[int]) -> list[RunEntry]:
        return [
            row(f"{key}{seed}", seed, 0.1, after, differs={"k": key})
            for key, after, seeds in (("a", 0.5, first), ("b", 0.3, second))
            for seed in seeds
        ]

    start = "mean held-out rewards are 0.300 to 0.500"
    assert sentence(tmp_path, rows([1], [2])) == (
        f"{start}, without further statistics: no seed of k=a was run with k=b too"
    )
    few = "No difference between k=a and k=b was shown: all 2 seeds differ alike, and 6 such seeds would show it."
    assert sentence(tmp_path, rows([1, 2, 3], [1, 2, 4])) == (
        f"{start}, adjusted by the values before training. {few}"
    )


def result(
    scoring: dict[str, Any] | None,
    passes: float | None = 0.5,
    tasks: str | None = "t",
    threshold: float = 1.0,
) -> HeldOutResult:
    record = None if scoring is None else {"guess": SCORING | scoring}
    return held_out_result(
        0.5, pass_threshold=threshold, env_pass_share=passes, tasks=tasks, scoring=record
    )


REWARD_FN = 'env.reward_fn (null or {"rewards:twice": 1.0})'
REDUCTION = 'env.reward.reduction ("sum" or "max")'


@pytest.mark.parametrize(
    ("first", "second", "basis", "reason"),
    [
        (result({}), result({}), "reward", ""),
        (result({}), result(TWICE), "passes", f"{REWARD_FN} differs"),
        (result({}), result({}, tasks="u"), "nothing", "the held-out tasks differ"),
        (
            result({}),
            result(TWICE | {"env.reward.reduction": "max"}),
            "nothing",
            f"{REWARD_FN} and {REDUCTION} differ",
        ),
    ],
)
def test_what_runs_are_ranked_by(
    first: HeldOutResult, second: HeldOutResult | None, basis: str, reason: str
) -> None:
    found = _basis([row("a", 1, None, 0.5, result=first), row("b", 2, None, 0.5, result=second)])
    assert (found[0], set(found[1].split(" and "))) == (basis, set(reason.split(" and ")))


def test_a_run_that_cannot_be_read_is_last_in_a_list_and_an_error_by_its_name(
    tmp_path: Path,
) -> None:
    for run in ("a", "b", "c"):
        leave(tmp_path, run, 0.5)
    for run, content in (("a", "{}"), ("b", "")):
        (tmp_path / f"runs/{run}/run.json").write_text(content)
    rows = leaderboard(tmp_path, [])
    assert [(one.run, one.status, bool(one.note)) for one in rows] == [
        ("c", "succeeded", False),
        ("a", "unreadable", True),
        ("b", "unreadable", True),
    ]
    with pytest.raises(XpError, match=r"runs/a/run\.json"):
        leaderboard(tmp_path, ["a", "c"])


SPEC = {"seed": 1, "training": {"rate": 1.0}, "model": {"name": "m", "lora": None}}


def test_a_run_that_cannot_be_read_does_not_replace_the_end_of_its_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, "a", 0.5)
    (leave(tmp_path, "b", 0.7) / "run.json").write_text("{")
    compare_existing(tmp_path, ["a", "b"])
    assert "runs/b/run.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"seed": 2, "launcher": {"name": "z"}}, [{}, {}]),
        (
            {"model": {"name": "m", "lora": {"rank": 8}}},
            [{"model.lora.rank": None}, {"model.lora.rank": 8}],
        ),
        # With another model, its other keys follow.
        ({"model": {"name": "n", "lora": {"rank": 8}}}, [{}, {}]),
    ],
)
def test_keys_that_decide_nothing_do_not_differ(
    changes: dict[str, Any], values: list[dict[str, Any]]
) -> None:
    assert differing([SPEC, SPEC | changes]) == values


def test_a_value_is_written_as_an_override() -> None:
    values = [None, True, 1e-5, 0.1 + 0.2, [1, [None, "a"]]]
    assert [text(value) for value in values] == ["null", "true", "1e-05", "0.3", "[1,[null,a]]"]
