"""Runs, evaluations and rescored runs with a judge by rubric, of real processes; the judge is a stub's endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stubs.chat_server import ChatServer, serving
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

__all__ = ["outputs", "prepared"]
pytestmark = pytest.mark.timeout(1800)


def judge(server: ChatServer, scoring: str) -> str:
    model = f"{{url: '{server.url}', name: judge, price_in: 100, price_out: 200}}"
    return f"env.judge={{rubric: The shorter the better., scoring: {scoring}, model: {model}}}"


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
