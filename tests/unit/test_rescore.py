"""Recorded episodes settled by another rule: what the curve and the comparison would have been."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import leave_evaluation
from tests.support.fake_session import RULES, FakeSession, call
from xp.__main__ import main
from xp.composition import compose
from xp.composition.points import to_yaml
from xp.envs.base import EnvUnavailable, Task, ToolResult
from xp.episode.episode import Episode
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import ExitCode, XpError
from xp.results.replay.rescore import compared, rescore, steps

OVERRIDES = (
    "env=multiply",
    "training.group_size=2",
    "training.prompts_per_step=2",
    "training.micro_batch_size=4",
)


def answer(name: str, number: int) -> ToolResult | Exception:
    """`move` scores 0.25, `win` ends with 1, `down` fails."""
    known = {"move": ToolResult("moved", 0.25), "win": ToolResult("won", 1.0, finished=True)}
    return EnvUnavailable(f"call {number} was refused") if name == "down" else known[name]


# Words of each episode: task -> its episodes' calls.
FIRST = {0: ("move move win", "move"), 1: ("move", "move")}
SECOND = {0: ("win", "win"), 1: ("down", "move move")}


def leave_run(
    outputs: Path, name: str, *phases: tuple[str, int, int, dict[int, Sequence[str]]]
) -> Path:
    """A run with episodes of phases: file below the attempt, step, attempt, episodes."""
    run = outputs / "runs" / name
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(compose([*OVERRIDES, f"outputs={outputs}"])))
    (run / "run.json").write_text("{}")
    for phase, step, attempt, tasks in phases:
        file = (
            run
            / f"attempt_{attempt}"
            / phase.partition("/")[0]
            / "trajectories"
            / f"{phase.rpartition('/')[2]}.jsonl"
        )
        with TrajectoryWriter(file) as writer:
            for index, several in tasks.items():
                for sample, words in enumerate(several):
                    episode = Episode(
                        Task("multiply", "train", index), lambda: FakeSession(answer), RULES
                    )
                    for word in words.split():
                        episode.step(call(word))
                    episode.settle()
                    writer.write(
                        trajectory(
                            episode, run=name, phase=phase, step=step, sample=sample, tools="[]"
                        )
                    )
    return run


def test_its_own_rule_gives_what_is_recorded(tmp_path: Path) -> None:
    run = leave_run(
        tmp_path,
        "a",
        ("train", 0, 1, FIRST),
        ("train", 1, 1, SECOND),
    )
    episodes = rescore(run, {})
    assert [one.outcome for one in episodes] == [one.recorded for one in episodes]
    assert [one.outcome.reward for one in episodes] == [1.5, 0.25, 0.25, 0.25, 1.0, 1.0, None, 0.5]


def test_another_reduction_moves_means_and_groups_with_signal(tmp_path: Path) -> None:
    run = leave_run(
        tmp_path,
        "a",
        ("train", 0, 1, FIRST),
        ("train", 1, 1, SECOND),
    )
    spec = compose(OVERRIDES)
    first, second = steps(rescore(run, {"env.reward.reduction": "min"}), spec)
    assert first.phase == "train"
    assert first.step == 1
    assert first.episodes == 4
    assert first.recorded == 0.5625
    assert first.rescored == 0.25
    assert first.signal_recorded == 0.5
    assert first.signal_rescored == 0.0
    assert (second.step, second.rescored, second.num_void) == (2, pytest.approx(2.25 / 3), 1)


def test_an_unfinished_episode_has_the_nonterminal_reward_and_limits(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "a", ("train", 0, 1, FIRST))
    rule = {"env.reward.nonterminal": -3.0, "env.members.multiply.reward.minimum": -1.0}
    assert [one.outcome.reward for one in rescore(run, rule)] == [1.5, -1.0, -1.0, -1.0]


def test_functions_have_the_arguments_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.py").write_text(
        "def calls(outcome, index, messages, tool_calls):\n"
        "    assert messages[0] == {'role': 'user', 'content': 'play'}\n"
        "    results = [one['result'].reward for one in tool_calls]\n"
        "    assert results == list(outcome.step_rewards)\n"
        "    return {'reward': 10 * index + len(tool_calls), 'first': 2.0}\n"
        "def picky(outcome):\n"
        "    return 1 / (outcome.reward - 1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = leave_run(
        tmp_path,
        "a",
        ("train", 0, 1, FIRST),
        ("train", 1, 1, SECOND),
    )
    episodes = rescore(run, {"env.reward_fn": "rules:calls"})
    assert [one.outcome.reward for one in episodes] == [3, 1, 11, 11, 1, 1, None, 12]
    assert episodes[0].outcome.unshaped == 1.5
    assert episodes[0].outcome.metrics == {"first": 2.0}
    reasons = [one.outcome.void_reason for one in rescore(run, {"env.reward_fn": "rules:picky"})]
    assert [reason is not None for reason in reasons] == [
        False,
        False,
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    fault = (
        "reward_fn rules:picky: ToolCrashed: it raised ZeroDivisionError: float division by zero"
    )
    assert str(reasons[4]).startswith(fault)
    assert str(reasons[4]).endswith("rules.py:7)")


def test_a_rule_that_scores_nothing_says_why_and_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_rule.py").write_text(
        "def fails(outcome):\n    raise RuntimeError('no key')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    leave_run(
        tmp_path,
        "a",
        ("train", 0, 1, FIRST),
        ("train", 1, 1, SECOND),
    )
    words = ["rescore", "a", f"outputs={tmp_path}"]
    assert main([*words, "env.reward_fn=failing_rule:fails"]) == ExitCode.UNHEALTHY
    message = "7 of 7 episodes as void; the first: reward_fn failing_rule:fails: ToolCrashed: it raised RuntimeError: no key"
    assert message in capsys.readouterr().err
    assert main([*words, "env.reward.reduction=max"]) == 0
    assert "void; the first" not in capsys.readouterr().err


def test_a_step_that_was_played_again_counts_once(tmp_path: Path) -> None:
    run = leave_run(
        tmp_path,
        "a",
        ("train", 0, 1, FIRST),
        ("train", 0, 2, SECOND),
    )
    assert [one.outcome.reward for one in rescore(run, {})] == [1.0, 1.0, None, 0.5]


SCORED_BY = {
    "env.reward_fn": {"rules:calls": 1.0},
    "code of rules:calls": "1",
    "env.reward.reduction": "sum",
}


def leave_evaluations(
    outputs: Path, scored_by: Mapping[str, Any] = SCORED_BY, content: str = "c"
) -> tuple[Path, Path]:
    """Two evaluated runs; the second one's scoring, and the content of its second task."""
    places = []
    for name, tasks, scoring, last in (
        ("a", FIRST, SCORED_BY, "c"),
        ("b", SECOND, scored_by, content),
    ):
        run = leave_run(outputs, name, ("evaluate/after", 0, 1, tasks))
        rewards = {f"multiply/train/{index}": [0.0, 0.0] for index in tasks}
        hashes = dict(zip(rewards, ("c", last), strict=True))
        leave_evaluation(run, after=rewards, hashes=hashes, scoring={"multiply": scoring})
        places.append(run)
    return places[0], places[1]


def test_two_runs_with_other_rewards_are_compared_by_one_rule(tmp_path: Path) -> None:
    other = {"env.reward_fn": None, "env.reward.reduction": "last"}
    runs = leave_evaluations(tmp_path, other)
    first, second = (rescore(run, {"env.reward.reduction": "max"}) for run in runs)
    pair = compared(runs, first, second, compose(OVERRIDES), 0.03)
    assert pair.first == "a"
    assert pair.second == "b"
    assert pair.num_tasks == 2
    assert (pair.mean_first, pair.mean_second) == (
        pytest.approx((0.625 + 0.25) / 2),
        pytest.approx((1.0 + 0.25) / 2),
    )
    with pytest.raises(XpError, match="a has no episodes of evaluate/before"):
        compared(
            (runs[0], runs[0]),
            first,
            first,
            compose(OVERRIDES),
            0.03,
        )


@pytest.mark.parametrize(
    ("scored_by", "content", "message"),
    [
        (SCORED_BY | {"code of rules:calls": "2"}, "c", ""),
        (SCORED_BY, "d", "a and b: 1 task have another content under the same name"),
    ],
)
def test_runs_with_other_tasks_are_not_compared(
    scored_by: Mapping[str, Any],
    content: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    leave_evaluations(tmp_path, scored_by, content)
    code = main(["rescore", "a", "b", f"outputs={tmp_path}", "env.reward.reduction=max"])
    assert code == (ExitCode.PLAN if message else ExitCode.OK)
    assert message in capsys.readouterr().err


def test_runs_whose_environments_scored_by_other_code_are_not_compared(tmp_path: Path) -> None:
    runs = leave_evaluations(tmp_path, SCORED_BY | {"env.grader": "other"})
    file = runs[0] / "attempt_1/evaluate/after/eval.json"
    value = json.loads(file.read_text())
    value["scoring"]["multiply"]["env.grader"] = "number"
    file.write_text(json.dumps(value))
    sides = [rescore(run, {}) for run in runs]
    with pytest.raises(XpError, match=r"env\.grader") as caught:
        compared(runs, sides[0], sides[1], compose(OVERRIDES), 0.03)
    assert caught.value.code is ExitCode.PLAN


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("env.reward.reduktion=max",),
            "env.reward.reduktion is not a key of the reward's rule (did you mean",
        ),
        (("training.seed=3",), "training.seed is not a key of the reward's rule"),
        (
            ("env.members.other.reward_fn=null",),
            "env.members.other.reward_fn: a has no environment other",
        ),
        (("env.reward.reduction=most",), "reduction"),
        (("env.reward_fn=no.such:thing",), "reward_fn no.such:thing cannot be loaded"),
        (
            (),
            "rescore needs one run or two, and a rule: rescore RUN [RUN] env.reward_fn=MODULE:FUNCTION",
        ),
    ],
)
def test_a_rule_that_is_none_is_refused(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(tmp_path, "a", ("train", 0, 1, FIRST))
    assert main(["rescore", "a", f"outputs={tmp_path}", *words]) == ExitCode.CONFIG
    assert message in capsys.readouterr().err


def test_the_command_prints_steps_and_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = (("train", step, 1, FIRST) for step in range(1))
    leave_run(
        tmp_path, "a", *played, ("evaluate/before", 0, 1, FIRST), ("evaluate/after", 0, 1, SECOND)
    )
    words = ["rescore", "a", f"outputs={tmp_path}", "env.reward.reduction=max"]
    assert main(words) == ExitCode.OK
    title, head, *lines, verdict = capsys.readouterr().out.splitlines()
    assert title == "a  env.reward.reduction=max"
    assert head.split("\t")[:4] == ["phase", "step", "recorded", "rescored"]
    assert [line.split("\t")[:4] for line in lines] == [
        ["evaluate/before", "0", "0.562", "0.438"],
        ["train", "1", "0.562", "0.438"],
        ["evaluate/after", "0", "0.833", "0.750"],
    ]
    assert "a@0" in verdict
    assert main([*words, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert [line["rescored"] for line in found["steps"]["a"]] == [0.4375, 0.4375, 0.75]
    assert found["comparison"]["num_tasks"] == 2
