"""Runs beside each other: columns for what differs, one table an environment, and a sentence that claims no more."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import leave_evaluation
from tests.support.sections import replace
from tests.support.sweep_runs import leave_run, spec
from xp.__main__ import main
from xp.cli.compare import compare_existing
from xp.errors import ExitCode, XpError
from xp.execution.held_out import HeldOutResult
from xp.execution.leaderboard import (
    PLAIN,
    RunEntry,
    _basis,
    _place,
    as_markdown,
    differing,
    head,
    leaderboard,
    text,
)
from xp.execution.named import named_runs
from xp.execution.record import RunStatus
from xp.results.evaluation.ranking import sentence, settings_of
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
    assert sum(name.startswith(("training.", "evaluation.", "env.")) for name in cells[0]) == 1
    csv = shown(capsys, "--csv", f"outputs={tmp_path}")
    assert csv[0].endswith(RATE)
    assert csv[1].endswith(",0.001")


def test_environments_are_ranked_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave(tmp_path, "a", 0.9, "env=multiply")
    leave(tmp_path, "b", 0.1)
    leave(tmp_path, "c", 0.2)
    lines = shown(capsys, f"outputs={tmp_path}")
    assert [line for line in lines if line.endswith(":")] == ["multiply:", "whodunit_mini:"]
    assert [line.split("\t")[0] for line in lines if "\t" in line] == ["run", "a", "run", "c", "b"]


def test_runs_are_named_by_a_beginning_or_a_pattern(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for run in ("sweep-1", "sweep-2", "other", "sweep"):
        leave(tmp_path, run, 0.5)
    every = ("other", "sweep", "sweep-1", "sweep-2")
    for words, meant in (
        (["sweep-"], every[2:]),
        (["*-2", "other"], ("sweep-2", "other")),
        (["sweep"], every[1:2]),
    ):
        assert [run.name for run in named_runs(tmp_path, words, takes_several=True)] == [*meant]
    assert [run.name for run in named_runs(tmp_path, [], takes_several=True)] == [*every]
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
        ({"env.reward.reduction": "max"}, 'env.reward.reduction ("sum" or "max") differs'),
        ({"env.options": {"judge": "b"}}, 'env.options ({} or {"judge": "b"}) differs'),
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
        json.loads("\n".join(shown(capsys, "--json", f"outputs={tmp_path}")))[0]["incomparable"]
        == reason
    )
    assert reason.replace('"', '""') in "\n".join(shown(capsys, "--csv", f"outputs={tmp_path}"))
    assert (
        main(["runs", "compare", "plain", "twice", "--paired", f"outputs={tmp_path}"])
        == ExitCode.PLAN
    )
    text = capsys.readouterr().err
    assert "their rewards are not on one scale" in text
    assert reason.removesuffix(" differs") in text
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
    with_tasks(other, [0.0, 1.0] * 3, "aBCDef")
    assert (
        main(["runs", "compare", "one", "other", "--paired", f"outputs={tmp_path}"])
        == ExitCode.PLAN
    )
    told = capsys.readouterr().err
    assert "3 tasks have another content under the same name" in told
    assert "e/test/3 and" not in told
    with_tasks(other, [0.0, 1.0] * 3, "abcdef")
    assert _pairs([one, other])[1] == []
    lines = shown(capsys, "one", "other", "--paired", f"outputs={tmp_path}")
    assert not any("content" in line for line in lines)


def test_a_long_value_is_cut_in_a_table_and_whole_in_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = "be brief " * 1000
    leave(tmp_path, "a", 0.9)
    leave(tmp_path, "b", 0.1, f"env.system_prompt='{prompt}'")
    for words in ([], ["--markdown"]):
        text = "\n".join(shown(capsys, *words, f"outputs={tmp_path}"))
        assert "be brief be brief" in text
        assert len(text) < 2000
    assert prompt.strip() in "\n".join(shown(capsys, "--csv", f"outputs={tmp_path}"))


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
    table = list(
        csv.DictReader(shown(capsys, "--csv", f"outputs={tmp_path}")[-1:], fieldnames=PLAIN)
    )
    assert table[0]["env"] == QUOTED
    plain = shown(capsys, f"outputs={tmp_path}")
    assert [line for line in plain if line.startswith("|")] == []


def row(
    run: str, seed: int | None, before: float | None, after: float | None, **fields: Any
) -> RunEntry:
    return RunEntry(run, seed=seed, before=before, after=after, **fields)


def test_a_setting_has_the_rewards_of_each_of_its_seeds() -> None:
    rows = [
        row("none", 1, 0.0, None),
        row("other", 1, 0.0, 0.9, ranked_by="passes"),
        row("low-1", 1, 0.2, 0.3, model="m2"),
        row("high-1", 1, 0.0, 0.4, model="m1"),
        row("again", 1, 0.4, 0.8, model="m1"),
        row("high-2", None, 0.2, 0.0, model="m1"),
    ]
    high, low = settings_of(rows)
    # The mean before training is 0.2: what a run had more is taken off, and what it had less is added.
    assert high.label == "model=m1"
    assert low.label == "model=m2"
    assert high.rewards == {1: pytest.approx([0.6, 0.6]), 0: pytest.approx([0.0])}
    assert [*high.seeds, high.mean, low.mean] == pytest.approx([0.6, 0.0, 0.3, 0.3])
    best, worst = settings_of(
        [row("a", 1, None, 0.2, differs={"k": 1}), row("b", 1, 0.1, 0.5, differs={"k": 2})]
    )
    assert [(one.label, one.rewards, one.stderr) for one in (best, worst)] == [
        ("k=2", {1: [0.5]}, None),
        ("k=1", {1: [0.2]}, None),
    ]
    assert [one.label for one in settings_of([row("a", 1, 0.0, 0.1), row("b", 2, 0.0, 0.1)])] == [
        "a"
    ]


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
    rows = [
        row(
            f"r{seed}",
            seed,
            None,
            after,
            result=HeldOutResult(after, None, 1, 0, 0.0, 1.0, 1, limits=limits),
        )
        for seed, after in enumerate(rewards)
    ]
    line = f"{len(rewards)} seeds of one spec: mean held-out reward 0.500, {interval}"
    assert sentence(tmp_path, [*rows, row("void", 9, None, None)]) == line
    assert sentence(tmp_path, [rows[0], row("void", 9, None, None)]) is None
    without = sentence(tmp_path, [replace(one, result=None) for one in rows])
    assert without == line.replace("0.300 to 0.700", "0.252 to 0.748")
    twice = [row("a", 1, None, 0.4), row("b", 1, None, 0.6)]
    assert sentence(tmp_path, twice) == "2 runs with 1 seed of one spec: mean held-out reward 0.500"


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
    def rows(*seeds: tuple[int, int], before: float | None = 0.1) -> list[RunEntry]:
        a, b = (
            [row(f"{key}{seed}", seed, before, after, differs={"k": key}) for seed in of]
            for key, after, of in zip("ab", (0.5, 0.3), zip(*seeds, strict=True), strict=True)
        )
        return [*a, *b]

    start = "mean held-out rewards are 0.300 to 0.500"
    assert (
        sentence(tmp_path, rows((1, 2)))
        == f"{start}, without further statistics: no seed of k=a was run with k=b too"
    )
    few = "No difference between k=a and k=b was shown: all 2 seeds differ alike, and 6 such seeds would show it."
    seeds = ((1, 1), (2, 2), (3, 4))
    for some in (seeds, seeds[:2]):
        assert (
            sentence(tmp_path, rows(*some))
            == f"{start}, adjusted by the values before training. {few}"
        )
    assert sentence(tmp_path, [*rows(*seeds, before=None), *rows(*seeds)]) == f"{start}. {few}"


def result(
    scoring: dict[str, Any] | None,
    passes: float | None = 0.5,
    tasks: str | None = "t",
    threshold: float = 1.0,
) -> HeldOutResult:
    record = None if scoring is None else {"guess": SCORING | scoring}
    return HeldOutResult(
        0.5, None, 1, 0, 0.0, threshold, 1, env_pass_share=passes, tasks=tasks, scoring=record
    )


REWARD_FN = 'env.reward_fn (null or {"rewards:twice": 1.0})'
REDUCTION = 'env.reward.reduction ("sum" or "max")'


@pytest.mark.parametrize(
    ("first", "second", "basis", "reason"),
    [
        (result({}), result({}), "reward", ""),
        (result(None), result(TWICE), "reward", ""),
        (result({}), None, "reward", ""),
        (result({}, tasks=None), result({}), "reward", ""),
        (result({}), result(TWICE), "passes", f"{REWARD_FN} differs"),
        (result({}), result(TWICE, passes=None), "nothing", f"{REWARD_FN} differs"),
        (result({}), result(TWICE, threshold=0.5), "nothing", f"{REWARD_FN} differs"),
        (
            result({}),
            result(TWICE, tasks="u"),
            "nothing",
            f"{REWARD_FN} and the held-out tasks differ",
        ),
        (result({}), result({}, tasks="u"), "nothing", "the held-out tasks differ"),
        (result({}), result({"env.reward.reduction": "max"}), "nothing", f"{REDUCTION} differs"),
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


def test_the_best_is_first_and_runs_without_a_result_are_last() -> None:
    rows = [
        row("none", 1, None, None),
        row("b", 1, None, 0.5, passes=0.1),
        row("a", 1, None, 0.5, passes=0.2),
        row("zero", 1, None, 0.0),
        row("low", 1, None, -0.5, passes=0.9),
    ]
    assert [one.run for one in sorted(rows, key=_place)] == ["a", "b", "zero", "low", "none"]
    by_passes = [replace(one, ranked_by="passes") for one in rows]
    assert [one.run for one in sorted(by_passes, key=_place)] == ["low", "a", "b", "zero", "none"]
    unranked = [replace(one, ranked_by="nothing") for one in rows]
    assert [one.run for one in sorted(unranked, key=_place)] == ["a", "b", "low", "zero", "none"]


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (1e-5, "1e-05"),
        (0.1 + 0.2, "0.3"),
        (3, "3"),
        ([1, [None, "a"]], "[1,[null,a]]"),
        ("a b", "a b"),
    ],
)
def test_a_value_is_written_as_an_override(value: object, expected: str) -> None:
    assert text(value) == expected


def test_a_table_has_rounded_and_short_values() -> None:
    values = {"long": "x" * 200, "longer": "x" * 201, "list": [1.0]}
    rows = [row("a", 1, None, 2 / 3, differs=values), row("b", 2, 0.5, None)]
    names = ["run", "before", "after", *values]
    assert head(rows) == [*PLAIN, *values]
    table = [line.strip("| ").split(" | ") for line in as_markdown(rows).splitlines()]
    cells = [dict(zip(table[0], line, strict=True)) for line in table[2:]]
    first, second = ([line[name] for name in names] for line in cells)
    assert first == ["a", "-", "0.667", "x" * 200, "x" * 197 + "...", "[1]"]
    assert second == ["b", "0.500", "-", "-", "-", "-"]


def test_a_run_that_cannot_be_read_does_not_replace_the_end_of_its_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, "a", 0.5)
    (leave(tmp_path, "b", 0.7) / "run.json").write_text("{")
    compare_existing(tmp_path, ["a", "b"])
    assert "runs/b/run.json" in capsys.readouterr().err


SPEC = {
    "seed": 1,
    "outputs": "x",
    "training": {"rate": 1.0},
    "model": {"name": "m", "lora": None},
    "env": {"a": [1]},
}


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({}, [{}, {}]),
        ({"seed": 2, "outputs": "y", "launcher": {"name": "z"}}, [{}, {}]),
        ({"training": {"rate": 2.0}}, [{"training.rate": 1.0}, {"training.rate": 2.0}]),
        ({"training": {"rate": 1.0, "new": 3}}, [{"training.new": None}, {"training.new": 3}]),
        (
            {"model": {"name": "m", "lora": {"rank": 8}}},
            [{"model.lora.rank": None}, {"model.lora.rank": 8}],
        ),
        # With another model, its other keys follow.
        ({"model": {"name": "n", "lora": {"rank": 8}}}, [{}, {}]),
        ({"env": {"a": [2]}}, [{"env.a": [1]}, {"env.a": [2]}]),
        (
            {"env": {"a": {"b": 1}}},
            [{"env.a": [1], "env.a.b": None}, {"env.a": None, "env.a.b": 1}],
        ),
    ],
)
def test_keys_that_decide_nothing_do_not_differ(
    changes: dict[str, Any], values: list[dict[str, Any]]
) -> None:
    assert differing([SPEC, SPEC | changes]) == values
    assert differing([SPEC]) == [{}]
    assert differing([]) == []
