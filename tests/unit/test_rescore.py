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


def leave_run(outputs: Path, name: str, *phases: tuple[str, int, dict[int, Sequence[str]]]) -> Path:
    """A run with episodes of phases: file below the attempt, attempt, episodes."""
    run = outputs / "runs" / name
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(compose([*OVERRIDES, f"outputs={outputs}"])))
    (run / "run.json").write_text("{}")
    for number, (phase, attempt, tasks) in enumerate(phases):
        stage, _, file = phase.rpartition("/")
        place = run / f"attempt_{attempt}" / (stage or file) / f"trajectories/{file}.jsonl"
        step = {"train": number}.get(phase, 0)
        with TrajectoryWriter(place) as writer:
            for index, several in tasks.items():
                for sample, words in enumerate(several):
                    episode = played(index, words)
                    about = {"run": name, "phase": phase, "step": step, "sample": sample}
                    writer.write(trajectory(episode, tools="[]", **about))
    return run


def played(index: int, words: str) -> Episode:
    """An episode in which the policy makes these calls."""
    episode = Episode(Task("multiply", "train", index), lambda: FakeSession(answer), RULES)
    for word in words.split():
        episode.step(call(word))
    episode.settle()
    return episode


def test_another_rule_moves_means_and_groups_with_signal(tmp_path: Path) -> None:
    run = leave_run(tmp_path, "a", ("train", 1, FIRST), ("train", 1, SECOND))
    episodes = rescore(run, {})
    assert [one.outcome for one in episodes] == [one.recorded for one in episodes]
    assert [one.outcome.reward for one in episodes] == [1.5, 0.25, 0.25, 0.25, 1.0, 1.0, None, 0.5]
    first, second = steps(rescore(run, {"env.reward.reduction": "min"}), compose(OVERRIDES))
    assert (first.phase, first.step, first.episodes) == ("train", 1, 4)
    assert (first.recorded, first.rescored) == (0.5625, 0.25)
    assert (first.signal_recorded, first.signal_rescored) == (0.5, 0.0)
    assert (second.step, second.rescored, second.num_void) == (2, pytest.approx(2.25 / 3), 1)
    rule = {"env.reward.nonterminal": -3.0, "env.members.multiply.reward.minimum": -1.0}
    rewards = [one.outcome.reward for one in rescore(run, rule)]
    assert rewards == [1.5, -1.0, -1.0, -1.0, 1.0, 1.0, None, -1.0]


def test_functions_have_the_arguments_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rules.py").write_text(
        "def calls(outcome, index, messages, tool_calls):\n"
        "    assert messages[0] == {'role': 'user', 'content': 'play'}\n"
        "    results = [one['result'].reward for one in tool_calls]\n"
        "    assert results == list(outcome.step_rewards)\n"
        "    return {'reward': 10 * index + len(tool_calls), 'first': 2.0}\n"
        "def picky(outcome):\n"
        "    return 1 / (outcome.reward - 1)\n"
        "def none(outcome):\n"
        "    return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = leave_run(tmp_path, "a", ("train", 1, FIRST), ("train", 1, SECOND))
    episodes = rescore(run, {"env.reward_fn": "rules:calls"})
    assert [one.outcome.reward for one in episodes] == [3, 1, 11, 11, 1, 1, None, 12]
    assert (episodes[0].outcome.unshaped, episodes[0].outcome.metrics) == (1.5, {"first": 2.0})
    reasons = [one.outcome.void_reason for one in rescore(run, {"env.reward_fn": "rules:picky"})]
    assert [number for number, reason in enumerate(reasons) if reason] == [4, 5, 6]
    assert str(reasons[4]).startswith("reward_fn rules:picky: ToolCrashed: it raised ZeroDivision")
    assert str(reasons[4]).endswith("rules.py:7)")
    words = ["rescore", "a", f"outputs={tmp_path}", "env.reward_fn=rules:none"]
    assert main(words) == ExitCode.UNHEALTHY
    assert "7 of 7 episodes as void; the first: reward_fn rules:none: " in capsys.readouterr().err


SCORED_BY = {
    "env.grader": "number",
    "env.reward_fn": {"rules:calls": 1.0},
    "code of rules:calls": "1",
    "env.reward.reduction": "sum",
}


def leave_evaluations(outputs: Path, scoring: Mapping[str, Any], content: str = "c") -> list[Path]:
    """Two evaluated runs; the second one's scoring, and the content of its second task."""
    places = []
    for name, tasks, scored_by, last in (
        ("a", FIRST, SCORED_BY, "c"),
        ("b", SECOND, scoring, content),
    ):
        run = leave_run(outputs, name, ("evaluate/after", 1, tasks))
        rewards = {f"multiply/train/{index}": [0.0, 0.0] for index in tasks}
        hashes = dict(zip(rewards, ("c", last), strict=True))
        leave_evaluation(run, after=rewards, hashes=hashes, scoring={"multiply": scored_by})
        places.append(run)
    return places


def test_two_runs_with_other_rewards_are_compared_by_one_rule(tmp_path: Path) -> None:
    other = {"env.reward_fn": None, "env.reward.reduction": "last"}
    runs = leave_evaluations(tmp_path, other)
    first, second = (rescore(run, {"env.reward.reduction": "max"}) for run in runs)
    pair = compared(
        (runs[0], runs[1]),
        first,
        second,
        compose(OVERRIDES),
        0.03,
    )
    assert (pair.first, pair.second, pair.num_tasks) == ("a", "b", 2)
    assert (pair.mean_first, pair.mean_second) == pytest.approx((0.4375, 0.625))
    with pytest.raises(XpError, match="a has no episodes of evaluate/before"):
        compared((runs[0], runs[0]), first, first, compose(OVERRIDES), 0.03)


@pytest.mark.parametrize(
    ("scored_by", "content", "message"),
    [
        (SCORED_BY | {"code of rules:calls": "2"}, "c", ""),
        (SCORED_BY, "d", "a and b: 1 task have another content under the same name"),
        (SCORED_BY | {"env.grader": "other"}, "c", "env.grader"),
    ],
)
def test_runs_with_other_tasks_or_graders_are_not_compared(
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env.reward.reduktion=max"], "is not a key of the reward's rule (did you mean"),
        (["env.members.other.reward_fn=null"], "a has no environment other"),
        (["env.reward_fn=no.such:thing"], "reward_fn no.such:thing cannot be loaded"),
        ([], "rescore needs one run or two, and a rule: rescore RUN [RUN]"),
    ],
)
def test_a_rule_that_is_none_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_run(tmp_path, "a", ("train", 1, FIRST))
    assert main(["rescore", "a", f"outputs={tmp_path}", *words]) == ExitCode.CONFIG
    assert message in capsys.readouterr().err


def test_the_command_prints_steps_and_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = (("evaluate/before", 1, FIRST), ("evaluate/after", 1, SECOND))
    leave_run(tmp_path, "a", ("train", 1, FIRST), *evaluations)
    words = ["rescore", "a", f"outputs={tmp_path}", "env.reward.reduction=max"]
    assert main(words) == ExitCode.OK
    _, _, *lines, verdict = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[:4] for line in lines] == [
        ["evaluate/before", "0", "0.562", "0.438"],
        ["train", "1", "0.562", "0.438"],
        ["evaluate/after", "0", "0.833", "0.750"],
    ]
    assert "a@0" in verdict
    assert main([*words, "--json"]) == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    assert [line["rescored"] for line in printed["steps"]["a"]] == [0.4375, 0.4375, 0.75]
    assert printed["comparison"]["num_tasks"] == 2
