"""Runs, evaluations and rescored runs with a judge by rubric, of real processes; the judge is a stub's endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.embedded_default import metrics, the_run, xp
from tests.support.endpoint_evaluations import (
    knows_some,
    outputs,
    prepared,
    records_of,
    result_in,
    words,
)
from tests.support.fake_vllm import FAKE
from tests.support.judges import by
from xp.__main__ import main
from xp.errors import ExitCode
from xp.results.replay.rescore import rescore

__all__ = ["outputs", "prepared"]
pytestmark = pytest.mark.timeout(1800)


def judge(server: ChatServer, scoring: str) -> str:
    model = f"{{url: '{server.url}', name: judge, price_in: 100, price_out: 200}}"
    return f"env.judge={{rubric: The shorter the better., scoring: {scoring}, model: {model}}}"


def brevity(answer: Any) -> float:
    """10 for the shortest answer: the preference that no reward states."""
    return 10 * 0.999 ** len(answer if isinstance(answer, str) else json.dumps(answer))


def test_an_evaluation_is_judged_recorded_and_stopped_by_the_cost_of_its_judge(
    outputs: Path,
) -> None:
    with (
        serving(ChatServer(write=knows_some)) as model,
        serving(ChatServer(write=by(lambda _: 5.0))) as judging,
    ):
        sizes = ("evaluation.num_tasks=12", "evaluation.samples_per_task=2", "eval.concurrency=2")
        command = words(
            model,
            outputs,
            judge(judging, "pointwise"),
            *sizes,
            "model.price_in=0",
            "model.price_out=0",
        )
        assert main([*command, "--budget-usd", "0.02"]) == 0
        num_paid = len(judging.requests)
        assert 6 <= num_paid < 12, "a judge's request costs 0.003"
        assert result_in(outputs)["stopped"].startswith("--budget-usd 0.02 is spent")
        assert main([*command, "--budget-usd", "100"]) == 0
    records = records_of(outputs)
    assert len(records) == 24
    assert {one["outcome"]["reward"] - one["outcome"]["ungrouped"] for one in records} == {0.5}
    usage = result_in(outputs)["usage"]["judges"]
    assert usage["cost_usd"] == pytest.approx(0.003 * len(judging.requests))
    (place,) = (outputs / "evaluations").iterdir()
    lines = [line for file in (place / "judge").iterdir() for line in file.read_text().splitlines()]
    assert len(lines) == len(judging.requests)


def test_an_evaluation_serves_its_judge(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    served = "env.judge={rubric: The shorter the better., model: {serve: some/model}}"
    with serving(ChatServer(write=knows_some)) as model:
        command = words(model, outputs, served, "evaluation.num_tasks=4")
        assert main(command) == ExitCode.PLAN
        assert main([*command, "eval.engine=vllm"]) == 0
    assert {
        one["outcome"]["reward"] - one["outcome"]["ungrouped"] for one in records_of(outputs)
    } == {0.5}
    (place,) = (outputs / "evaluations").iterdir()
    assert "some/model" in (place / "judge.log").read_text()


@pytest.mark.integration
@pytest.mark.slow
def test_a_pairwise_judge_teaches_a_preference_that_no_reward_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text("def nothing(outcome):\n    return 0.0\n")
    with serving(ChatServer(write=by(brevity))) as server:
        sizes = (
            *("env.train.num_tasks=64", "env.held_out.num_tasks=48", "training.prompts_per_step=8"),
            *("training.group_size=4", "training.micro_batch_size=8", "training.num_steps=14"),
            *("training.learning_rate=1.4e-3", "training.max_response_tokens=200"),
        )
        done = xp(
            tmp_path,
            "name=first",
            "env.reward_fn=my_rewards:nothing",
            judge(server, "pairwise"),
            *sizes,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        run = the_run(tmp_path)
        num_asked = len(server.requests)
        lines = metrics(run, "train")
        assert all(line["group/judge"] == pytest.approx(0.5, abs=0.01) for line in lines)
        assert sum(line["judges/cost_usd"] for line in lines) > 0
        before, after = (lengths(run, phase) for phase in ("before", "after"))
        won = sum(
            float(after[task] < before[task]) + 0.5 * (after[task] == before[task])
            for task in before
        )
        print(f"held-out win rate {won / len(before):.2f}")
        assert won / len(before) >= 0.8
        # Equal requests are answered from the run's record, and the numbers are those of the training.
        episodes = rescore(run, {"env.reward.reduction": "sum"})
        assert len(server.requests) == num_asked
        assert all(one.outcome.reward == pytest.approx(one.recorded.reward) for one in episodes)


def lengths(run: Path, phase: str) -> dict[int, int]:
    file = run / "attempt_1" / "evaluate" / "trajectories" / f"{phase}.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    return {one["index"]: len(json.dumps(one["messages"])) for one in records}
