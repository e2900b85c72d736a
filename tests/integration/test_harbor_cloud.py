"""Sandboxes in a cloud: Harbor's own classes and clients against stubs of the clouds' HTTP APIs, whose commands really run."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.daytona_cloud import KEY, DaytonaCloud, daytona_cloud
from tests.stubs.e2b_cloud import KEY as E2B_KEY
from tests.stubs.e2b_cloud import E2bCloud, e2b_cloud
from tests.stubs.runloop_cloud import KEY as RUNLOOP_KEY
from tests.stubs.runloop_cloud import RunloopCloud, runloop_cloud
from tests.support.clouds import (
    ADDRESS,
    at_daytona,
    begun,
    cloud_task,
    free_port,
    needs_harbor,
    opened,
    variables,
)
from tests.support.fake_session import call
from tests.support.harbor_tasks import CONFIG, harbor
from tests.support.harness_programs import harness
from xp.checks.doctor.reach import environments
from xp.contrib.contracts.jobs import eventually
from xp.contrib.harbor.cloud_options import ACCOUNTS
from xp.envs.config import EnvConfig, load_provider
from xp.episode.outcome import EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.spec.env import SandboxKind

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), needs_harbor]
SAYS = {"analysis": "", "plan": "", "commands": [], "task_complete": False}
WRITES = {"keystrokes": "echo hello > hello.txt\n", "duration": 0.3}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[DaytonaCloud]:
    with daytona_cloud(tmp_path / "cloud") as cloud:
        yield cloud
        assert not cloud.sandboxes, "sandboxes are left"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    cloud_task(tmp_path / "tasks/a")
    return tmp_path / "tasks"


def test_a_task_is_played_in_a_sandbox_that_is_removed(tasks: Path, cloud: DaytonaCloud) -> None:
    cloud_task(tasks / "b", config=f'{CONFIG}[environment.env]\nLEVEL = "easy"\n')
    config = at_daytona(harbor(tasks))
    provider = opened(config, cloud)
    episodes = [begun(provider, config, number) for number in (0, 1)]
    for episode in episodes:
        episode.step(call("bash", command="echo hello > hello.txt"))
    texts = [
        episodes[1].step(call("bash", command=command)).messages[0]["content"]
        for command in ("echo $LEVEL; env", "seq 9999", "exit 3")
    ]
    (open_one, other) = list(cloud.sandboxes.values())
    assert open_one.machine.root != other.machine.root
    for episode in episodes:
        episode.step("Done.")
    outcomes = [episode.settle() for episode in episodes]
    assert [(outcome.status, outcome.reward) for outcome in outcomes] == [
        (EpisodeStatus.FINISHED, 1.0)
    ] * 2
    assert texts[0].startswith("easy\n")
    assert KEY not in texts[0]
    assert "bytes left out" in texts[1]
    assert len(texts[1]) < 1200
    assert texts[2] == "[exit code 3]"
    provider.close()
    # Both tasks have the same image.
    assert len(cloud.built) == 1
    assert {body["snapshot"] for body in cloud.created} == set(cloud.built)
    assert all(body["ttlMinutes"] == 60 for body in cloud.created)
    assert KEY not in json.dumps(cloud.created)


def test_a_cloud_that_refuses_makes_void_without_the_key(tasks: Path, cloud: DaytonaCloud) -> None:
    cloud.refuses_start = True
    config = at_daytona(harbor(tasks, retries_per_episode=0))
    provider = opened(config, cloud)
    episode = begun(provider, config)
    episode.step(call("bash", command="true"))
    outcome = episode.settle()
    provider.close()
    assert outcome.status is EpisodeStatus.VOID
    assert "daytona: " in str(outcome.void_reason)
    assert "no room for [REDACTED]" in str(outcome.void_reason)


@pytest.mark.parametrize("by", ["the next session", "the doctor"])
def test_what_a_killed_process_left_is_removed(
    tasks: Path, cloud: DaytonaCloud, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    config = at_daytona(harbor(tasks, retries_per_episode=0))
    provider = opened(config, cloud)
    episode = begun(provider, config)
    episode.step(call("bash", command="true"))
    assert len(cloud.sandboxes) == 1
    foreign = {"harbor.managed": "true", "harbor.session_id": "xp-0123456789-1-1-0"}
    _create(cloud, foreign)
    living = opened(config, cloud)
    other = begun(living, config)
    other.step(call("bash", command="true"))
    (left, elsewhere, lives) = cloud.sandboxes
    os.kill(int(cloud.sandboxes[left].facts["labels"]["harbor.session_id"].split("-")[2]), 9)
    eventually(lambda: not provider._clouds._process._child.is_alive())
    assert left in cloud.sandboxes
    if by == "the doctor":
        for name, value in variables(cloud).items():
            monkeypatch.setenv(name, value)
        spec = _spec(config)
        texts = [finding.text for finding in environments(spec)]
        assert any("removed the sandbox xp-" in text for text in texts), texts
        assert any("1 sandboxes at daytona are of other machines" in text for text in texts)
    else:
        again = begun(provider, config)
        again.step(call("bash", command="true"))
        again.step("Done.")
        again.settle()
    assert left not in cloud.sandboxes
    assert {elsewhere, lives} <= set(cloud.sandboxes)
    other.step("Done.")
    assert other.settle().status is EpisodeStatus.FINISHED
    episode.settle()
    living.close()
    provider.close()
    del cloud.sandboxes[elsewhere]


def test_a_sandbox_ends_after_its_minutes(tasks: Path, cloud: DaytonaCloud) -> None:
    config = at_daytona(harbor(tasks, retries_per_episode=0), max_minutes=0.05)
    config.options["cloud"]["options"] = {"ttl_minutes": 1}
    provider = opened(config, cloud)
    episode = begun(provider, config)
    episode.step(call("bash", command="true"))
    eventually(lambda: not cloud.sandboxes)
    episode.step(call("bash", command="true"))
    assert "env.options.cloud.max_minutes" in str(episode.settle().void_reason)
    provider.close()


def test_a_spent_budget_ends_the_process(
    tasks: Path, cloud: DaytonaCloud, capfd: pytest.CaptureFixture[str]
) -> None:
    config = at_daytona(harbor(tasks, retries_per_episode=0), price=3600.0, budget=0.01)
    provider = opened(config, cloud)
    episode = begun(provider, config)
    episode.step(call("bash", command="sleep 0.1"))
    with pytest.raises(
        XpError, match=r"env.options.cloud.budget is 0.01; set a larger one"
    ) as caught:
        begun(provider, config).step(call("bash", command="true"))
    assert caught.value.code is ExitCode.LIMIT
    episode.settle()
    provider.close()
    assert "hours of sandboxes, " in capfd.readouterr().err


def test_a_program_in_the_cloud_asks_the_policy_by_the_users_tunnel(
    tmp_path: Path, tasks: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with daytona_cloud(tmp_path / "cloud", f"http://{listen}") as cloud:
        options = {"endpoint": ADDRESS, "listen": listen, "setup": "pip install mine"}
        options["command"] = "python {program}/shell_agent.py {prompt_file}"
        config = at_daytona(harness(tasks, options=options))
        provider = opened(config, cloud)
        episode = begun(provider, config)
        episode.step(call("bash", command="echo hello > hello.txt"))
        episode.step("Done.")
        outcome = episode.settle()
        provider.close()
        assert not cloud.sandboxes
    assert (outcome.status, outcome.reward) == (EpisodeStatus.FINISHED, 1.0)
    (image,) = cloud.snapshots.values()
    text = image["buildInfo"]["dockerfileContent"]
    assert text.startswith("FROM ubuntu:24.04\nWORKDIR /app\n")
    assert base64.b64encode(b"pip install mine").decode() in text


def test_an_agent_of_harbors_plays_in_its_sandbox(tasks: Path, cloud: DaytonaCloud) -> None:
    config = at_daytona(_terminus(tasks))
    provider = opened(config, cloud)
    episode = begun(provider, config)
    first = episode.step(json.dumps({**SAYS, "commands": [WRITES]}))
    assert "New Terminal Output" in first.messages[0]["content"]
    complete = json.dumps({**SAYS, "task_complete": True})
    assert "Are you sure" in episode.step(complete).messages[0]["content"]
    episode.step(complete)
    outcome = episode.settle()
    provider.close()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.FINISHED, 1.0)
    assert KEY not in json.dumps(cloud.created)


def _terminus(tasks: Path) -> EnvConfig:
    options = {"agent": "terminus-2", "command": None, "program": None}
    return harness(tasks, options=options)


def _create(cloud: DaytonaCloud, labels: dict[str, str]) -> None:
    from tests.support.http_server import Request

    body = json.dumps({"labels": labels}).encode()
    headers = {"authorization": f"Bearer {KEY}"}
    assert cloud.answer(Request("POST", "/api/sandbox", headers, body)).status == 200


def _spec(config: EnvConfig) -> Any:
    from xp.composition import compose

    return compose(
        [
            "env=harbor",
            f"env.target={config.target}",
            "env.sandbox=daytona",
            f"env.python={config.python}",
            "env.secrets.DAYTONA_API_KEY=null",
            "env.held_out=null",
            "model=tiny",
        ]
    )


def _runloop(cloud: RunloopCloud) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Variables of the account; names of its open sandboxes by their labels, and of its images."""
    open_ones = {
        number: devbox["metadata"]["harbor.session_id"] for number, devbox in cloud.devboxes.items()
    }
    account = {"RUNLOOP_API_KEY": RUNLOOP_KEY, "RUNLOOP_BASE_URL": cloud.url}
    return account, open_ones, [blueprint["name"] for blueprint in cloud.blueprints]


def _e2b(cloud: E2bCloud) -> tuple[dict[str, str], dict[str, str], list[str]]:
    open_ones = {
        number: facts["metadata"]["session_id"] for number, facts in cloud.sandboxes.items()
    }
    account = {
        "E2B_API_KEY": E2B_KEY,
        "E2B_API_URL": cloud.url,
        "E2B_SANDBOX_URL": cloud.url,
        "E2B_HTTP_VERSION": "1.1",
    }
    return account, open_ones, list(cloud.templates)


@pytest.mark.parametrize(
    ("kind", "serve", "facts"),
    [(SandboxKind.RUNLOOP, runloop_cloud, _runloop), (SandboxKind.E2B, e2b_cloud, _e2b)],
)
def test_another_clouds_own_client_plays_and_leaves_nothing(
    tmp_path: Path, kind: SandboxKind, serve: Any, facts: Any
) -> None:
    cloud_task(tmp_path / "tasks/a")
    cloud_task(tmp_path / "tasks/b")
    (secret,) = ACCOUNTS[kind][0]
    config = at_daytona(harbor(tmp_path / "tasks")).model_copy(
        update={"sandbox": kind, "secrets": {secret: None}}
    )
    with serve(tmp_path / "cloud") as cloud:
        account, _, _ = facts(cloud)
        provider = load_provider(config, {**os.environ, **account})
        episodes = [begun(provider, config, number) for number in (0, 1)]
        for episode in episodes:
            episode.step(call("bash", command="echo hello > hello.txt"))
        _, open_ones, images = facts(cloud)
        assert len(open_ones) == 2
        assert len(images) == 1  # Both tasks have the same.
        (child,) = {label.split("-")[2] for label in open_ones.values()}
        os.kill(int(child), 9)
        eventually(lambda: not provider._clouds._process._child.is_alive())
        assert facts(cloud)[1] == open_ones
        lines = provider.remove_left()
        assert {line.split()[3] for line in lines} == set(open_ones.values())
        assert not facts(cloud)[1]
        again = begun(provider, config)
        again.step(call("bash", command="echo hello > hello.txt"))
        again.step("Done.")
        assert again.settle().reward == 1.0
        for episode in episodes:
            episode.settle()
        provider.close()
        assert not facts(cloud)[1]
        assert facts(cloud)[2] == images


@pytest.mark.parametrize(
    ("grade", "reward"),
    [("grep --quiet hello hello.txt # lost", 1.0), ("kill -KILL $$ # lost", None)],
)
def test_a_grade_whose_exit_code_is_lost_is_read_or_void(
    tmp_path: Path, grade: str, reward: float | None
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Write it."}) + "\n")
    listen = f"127.0.0.1:{free_port()}"
    options = {"endpoint": f"http://{listen}", "listen": listen, "image": "ubuntu:24.04"}
    rows = harness(None, rows=str(tmp_path / "rows.jsonl"), options={**options, "grade": grade})
    config = at_daytona(rows).model_copy(
        update={"sandbox": SandboxKind.RUNLOOP, "secrets": {"RUNLOOP_API_KEY": None}}
    )
    with runloop_cloud(tmp_path / "cloud") as cloud:
        cloud.lost_commands = "# lost"
        provider = load_provider(config, {**os.environ, **_runloop(cloud)[0]})
        episode = begun(provider, config)
        episode.step(call("bash", command="echo hello > hello.txt"))
        episode.step("Done.")
        outcome = episode.settle()
        provider.close()
    assert outcome.reward == reward, outcome
    assert (outcome.status is EpisodeStatus.VOID) == (reward is None)
