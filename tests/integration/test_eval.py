"""`xp eval` from its command line: an endpoint of a stub's, kills, limits, files."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.child import Fork
from tests.support.endpoint_evaluations import ROOT, knows_some, result_in, words
from tests.support.endpoint_evaluations import outputs as outputs
from tests.support.endpoint_evaluations import prepared as prepared
from xp.__main__ import main
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs import server_events
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode
from xp.lib import loaded_code
from xp.results.evaluation.records import EPISODES


def episodes_in(outputs: Path) -> list[tuple[str, int, int]]:
    (file,) = (outputs / "evaluations").glob(f"*/{EPISODES}")
    return [(one["split"], one["index"], one["sample"]) for one in read_trajectories(file)]


def test_an_endpoint_is_evaluated_with_a_table_of_80_columns(
    outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with serving(ChatServer(write=knows_some)) as server:
        sizes = ("evaluation.num_tasks=30", "evaluation.samples_per_task=2")
        command = words(server, outputs, *sizes, "tracking=tensorboard")
        assert main(command) == 0
        assert len(server.requests) == 60
        assert main(command) == 0  # it is finished: nobody is asked again
        assert len(server.requests) == 60
        assert main([*command, "--again"]) == 0
        assert len(server.requests) == 120
    assert not {loaded_code.VARIABLE, server_events.VARIABLE} & os.environ.keys()
    shown = capsys.readouterr().out
    place = next((outputs / "evaluations").glob("multiply-stub-????????"))
    result = json.loads((place / "eval.json").read_text())
    right = [one["rewards"] for one in result["tasks"].values()]
    assert result["summary"]["reward"]["value"] == pytest.approx(sum(map(sum, right)) / 60)
    assert result["summary"]["num_tasks"] == 30
    assert result["usage"] == {
        "prompt_tokens": 60 * 20,
        "completion_tokens": 300,
        "cost_usd": None,
        "judges": {},
    }
    assert pq.read_table(place / "episodes.parquet").num_rows == 60
    assert "| multiply | stub | 60 |" in (place / "table.md").read_text()
    assert r"multiply & stub & 60" in (place / "table.tex").read_text()
    table = [line for line in shown.splitlines() if line.startswith(("environment", "multiply"))]
    assert len(table) == 6
    assert max(map(len, table)) <= 80
    check_tracked(place, result["summary"])


def check_tracked(place: Path, figures: Mapping[str, Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(place / "tensorboard" / "attempt_1"))
    events.Reload()
    for name, value in (("multiply/reward", "value"), ("all/reward_low", "low")):
        logged = [one.value for one in events.Scalars(f"eval/{name}")]
        assert logged == [pytest.approx(figures["reward"][value])]


def test_the_samples_of_a_task_have_seeds_of_their_own_and_a_rerun_has_the_same(
    outputs: Path,
) -> None:
    with serving(ChatServer(write=knows_some)) as server:
        sizes = (
            "evaluation.num_tasks=2",
            "evaluation.samples_per_task=8",
            "evaluation.temperature=1",
        )
        for more in ((), ("--again",)):
            assert main([*words(server, outputs, "model.seed=7", *sizes), *more]) == 0
    sent = [(body["seed"], body["messages"][-1]["content"]) for body in server.requests]
    assert len(set(sent[:16])) == 16
    assert sorted(sent[:16]) == sorted(sent[16:])


def test_many_models_make_one_table(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ChatServer(write=knows_some, latency_s=0.02)) as server:
        command = words(
            server, outputs, "model.name=one,two", "evaluation.num_tasks=5", "--markdown"
        )
        command.remove("model.name=stub")
        assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines] == ["model", "---", "one", "two"]
    assert main(["eval", "list", "--json", f"outputs={outputs}"]) == 0
    assert [one["num_played"] for one in json.loads(capsys.readouterr().out)] == [5, 5]
    assert {one["model"] for one in server.requests} == {"one", "two"}
    results = [
        json.loads(file.read_text()) for file in (outputs / "evaluations").glob("*/eval.json")
    ]
    # The model's own time is part of an episode's.
    assert min(one["summary"]["seconds_mean"] for one in results) >= 0.02


def test_as_many_episodes_are_in_flight_as_asked_for_and_the_key_is_in_no_file(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "k" + "9x8Y" * 8
    monkeypatch.setenv("MY_MODEL_KEY", secret)
    more = ("model.key=MY_MODEL_KEY", "evaluation.num_tasks=40", "eval.concurrency=8")
    together = threading.Barrier(8)

    def wait(number: int) -> None:
        if number <= 8:
            together.wait(timeout=DEADLINE_S)  # the first eight are only answered together

    with serving(ChatServer(write=knows_some, before=wait)) as server:
        assert main(words(server, outputs, *more)) == 0
    assert server.most_in_flight == 8
    assert all(one["authorization"] == f"Bearer {secret}" for one in server.headers)
    told = capsys.readouterr()
    assert secret not in told.out + told.err
    written = [file for file in outputs.rglob("*") if file.is_file()]
    assert written
    assert all(secret.encode() not in file.read_bytes() for file in written)


def test_a_budget_ends_it_cleanly_and_a_larger_one_goes_on(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ChatServer(write=knows_some)) as server:
        prices = (
            "model.price_in=100",
            "model.price_out=1000",
        )  # 20 x 100 + 5 x 1000 = 0.007 dollars an episode
        command = words(
            server,
            outputs,
            *prices,
            "evaluation.num_tasks=30",
            "eval.concurrency=2",
        )
        assert main([*command, "--budget-usd", "0.07"]) == 0
        stopped = result_in(outputs)
        assert main([*command, "--budget-usd=100"]) == 0
    assert stopped["status"] == "stopped"
    assert stopped["stopped"].startswith("--budget-usd 0.07 is spent")
    assert 10 <= stopped["num_played"] <= 11
    assert len(server.requests) == 30
    assert result_in(outputs)["status"] == "finished"
    assert result_in(outputs)["usage"]["cost_usd"] == pytest.approx(0.21)
    assert "of 30 episodes: --budget-usd 0.07 is spent" in capsys.readouterr().out


def test_a_model_of_this_machine_does_not_cost_what_an_endpoint_does(outputs: Path) -> None:
    prices = ("model.price_in=100", "model.price_out=1000")
    with serving(ChatServer(write=knows_some)) as server:
        sizes = ("evaluation.num_tasks=3", "eval.concurrency=1")
        command = words(server, outputs, *prices, "model=tiny", *sizes)
        assert main([*command, "--budget-usd", "0.0211"]) == 0  # three episodes of the endpoint
    results = [json.loads(file.read_text()) for file in outputs.glob("evaluations/*/eval.json")]
    assert [result["status"] for result in results] == ["finished", "finished"]


def test_a_budget_counts_the_evaluations_that_are_finished(outputs: Path) -> None:
    prices = ("model.price_in=100", "model.price_out=1000")  # 0.007 dollars an episode
    with serving(ChatServer(write=knows_some)) as server:
        command = words(
            server,
            outputs,
            *prices,
            "evaluation.num_tasks=10",
            "eval.concurrency=1",
        )
        command[command.index("model.name=stub")] = "model.name=one,two"
        assert main([*command, "--budget-usd", "0.1"]) == 0
        num_requests = len(server.requests)
        assert 15 <= num_requests <= 16
        assert main([*command, "--budget-usd", "0.1"]) == 0
        assert len(server.requests) == num_requests


def test_an_outputs_root_in_quotes_is_the_same_for_every_command(
    outputs: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path_factory.mktemp("roots") / "a,b"
    root.mkdir()
    (root / "tasks").symlink_to(outputs / "tasks")
    word = f"outputs='{root}'"
    with serving(ChatServer(write=knows_some)) as server:
        _, _, *more = words(server, root, "--tries", "1")
        assert main(["tasks", "profile", word, *more]) == ExitCode.OK
    assert len([*(root / "evaluations").iterdir()]) == 1
    for command in (["eval", "run=none"], ["rescore", "none", "env.reward.reduction=max"]):
        assert main([*command, word]) == ExitCode.RUN_DIR
        assert capsys.readouterr().err.endswith(f" outputs={root}\n")


def test_a_dead_endpoint_leaves_what_was_played(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ChatServer(write=knows_some)
    more = ("evaluation.num_tasks=20", "eval.concurrency=2", "model.max_attempts=1")
    with serving(server):
        server.before = lambda number: (500, {}, {"error": "down"}) if number > 7 else None
        assert main(words(server, outputs, *more)) == ExitCode.ENVIRONMENT
        assert "the same command continues" in capsys.readouterr().err
        first = episodes_in(outputs)
        server.before = lambda _: None
        assert main(words(server, outputs, *more)) == 0
    assert len(first) == 7
    assert sorted(episodes_in(outputs)) == sorted(set(episodes_in(outputs)))
    assert result_in(outputs)["num_played"] == 20


@pytest.mark.parametrize(
    ("kills", "num_tasks"), [(1, 8), pytest.param(20, 120, marks=pytest.mark.slow)]
)
def test_killed_at_random_points_each_episode_counts_once(
    outputs: Path,
    prepared: Path,
    tmp_path_factory: pytest.TempPathFactory,
    kills: int,
    num_tasks: int,
) -> None:
    draw = random.Random(22)
    whole = tmp_path_factory.mktemp("whole")
    (whole / "tasks").symlink_to(prepared / "tasks")
    sizes = (f"evaluation.num_tasks={num_tasks}", "evaluation.samples_per_task=2")
    more = (*sizes, "eval.concurrency=4", "evaluation.temperature=0.0")
    with serving(ChatServer(write=knows_some, latency_s=0.002)) as server:
        for _ in range(kills):
            before = len(server.requests)
            command = words(server, outputs, *more)
            playing = Fork(partial(main, command), ROOT)
            after = before + draw.randint(1, 9)
            while len(server.requests) < after:
                time.sleep(0.001)
            time.sleep(draw.random() * 0.01)
            playing.send(signal.SIGKILL)
            assert playing.end().returncode == -signal.SIGKILL
        assert main(words(server, outputs, *more)) == 0
        assert main(words(server, whole, *more)) == 0
    assert len(episodes_in(outputs)) == len(set(episodes_in(outputs))) == 2 * num_tasks
    broken = result_in(outputs)
    unbroken = result_in(whole)
    assert broken["tasks"] == unbroken["tasks"]
    assert broken["summary"]["reward"] == unbroken["summary"]["reward"]
    assert 0 < broken["summary"]["reward"]["value"] < 1
