"""The prepare stage as a process against real ORS servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.envs_under_test.counter import LOG_VARIABLE
from tests.support.ors_server import COUNTER, rules
from tests.support.sections import held_out_rule, member_of, prepare_of, selection
from xp.errors import ExitCode
from xp.lib.atomic import write_atomically
from xp.tasks.config import PrepareConfig
from xp.tasks.request import request_key
from xp.tasks.store import open_verified

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Stage:
    """One request in one outputs root."""

    root: Path
    config: PrepareConfig

    def start(self) -> subprocess.Popen[str]:
        (self.root / "effects").touch()
        write_atomically(self.root / "config.json", self.config.to_json())
        environ = {**os.environ, "PYTHONPATH": str(ROOT), LOG_VARIABLE: str(self.root / "effects")}
        return subprocess.Popen(
            [sys.executable, "-m", "xp.tasks.prepare", "config.json"],
            cwd=self.root,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> tuple[int, str]:
        process = self.start()
        out, err = process.communicate(timeout=400)
        return process.returncode, out + err

    def effects(self) -> Counter[str]:
        return Counter(line.partition(" ")[0] for line in (self.root / "effects").read_text().splitlines())

    @property
    def path(self) -> Path:
        return self.root / "tasks" / request_key(self.config)


def stage(root: Path, num_train: int = 150, **env: object) -> Stage:
    own = {"name": "count", "serve": COUNTER, "target": None, "variant": None, "system_prompt": "Use {tool_names}."}
    member = member_of(
        rules(**{**own, **env}),
        train=selection(("train",), num_tasks=num_train),
        held_out=held_out_rule("test", may_overlap=True),  # both splits have the same prompts
        weight=1.0,
    )
    return Stage(root, prepare_of({"count": member}, allow_missing_fraction=0.0, concurrency=32))


def test_a_served_environment_is_prepared_and_each_session_is_torn_down(tmp_path: Path) -> None:
    prepared = stage(tmp_path)
    code, said = prepared.finish()
    assert code == 0, said
    task_set = open_verified(prepared.path)
    assert (task_set.num_tasks("train"), task_set.num_tasks("held_out")) == (150, 20)
    assert prepared.effects() == {"init": 170, "teardown": 170}
    row = next(task_set.rows("train"))
    assert row.messages[0]["content"].startswith("Use clock, crash, inc,")
    assert row.messages[1] == {"role": "user", "content": "Count to 0."}
    assert {"inc", "submit"} <= {tool["function"]["name"] for tool in json.loads(row.tools)}


def test_an_address_where_nothing_listens_is_one_clear_message(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    code, said = stage(tmp_path, serve=None, target=url, create_timeout_s=5.0).finish()
    assert code == ExitCode.ENVIRONMENT, said
    assert f"environment count ({url}) does not answer" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        ("tests.envs_under_test.counter:NoSuchClass", "NoSuchClass"),
        pytest.param("tests.envs_under_test.no_such_module:Counter", "no_such_module", marks=pytest.mark.slow),
    ],
)
def test_an_environment_that_cannot_be_served_is_one_clear_message(tmp_path: Path, serve: str, message: str) -> None:
    code, said = stage(tmp_path, serve=serve).finish()
    assert code in (ExitCode.ENVIRONMENT, ExitCode.CONFIG), said
    assert message in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_signal_tears_every_session_down_and_ends_the_server(tmp_path: Path) -> None:
    stopped = stage(tmp_path, num_train=700)
    process = stopped.start()
    wait_until(lambda: stopped.effects()["init"] > 40)
    servers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=200)
    assert (process.returncode, "Traceback" in err) == (143, False), err
    assert stopped.effects()["init"] == stopped.effects()["teardown"]
    assert psutil.wait_procs(servers, timeout=100)[1] == []


def test_a_killed_stage_leaves_no_server_behind(tmp_path: Path) -> None:
    killed = stage(tmp_path, num_train=200)
    process = killed.start()
    wait_until(lambda: killed.effects()["init"] > 40)
    servers = psutil.Process(process.pid).children(recursive=True)
    assert servers
    process.kill()
    process.communicate()
    assert psutil.wait_procs(servers, timeout=100)[1] == []
    assert killed.finish()[0] == 0


def test_a_server_that_dies_is_restarted_and_the_set_whole(tmp_path: Path) -> None:
    orphaned = stage(tmp_path, num_train=300, create_timeout_s=100.0)
    process = orphaned.start()
    wait_until(lambda: orphaned.effects()["init"] > 150)
    for server in psutil.Process(process.pid).children(recursive=True):
        server.kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "it is started again" in err
    assert "Traceback" not in err
    assert orphaned.path.exists()
    before = orphaned.effects()["init"]
    assert orphaned.finish()[0] == 0
    assert orphaned.effects()["init"] == before


def wait_until(is_so: Callable[[], bool], limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)
