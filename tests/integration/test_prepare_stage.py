"""The prepare stage as a process against real ORS servers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import LOG_VARIABLE
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

    def finish(self) -> tuple[int, str]:
        (self.root / "effects").touch()
        write_atomically(self.root / "config.json", self.config.to_json())
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            LOG_VARIABLE: str(self.root / "effects"),
        }
        command = [sys.executable, "-m", "xp.tasks.prepare", "config.json"]
        done = subprocess.run(
            command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=400
        )
        return done.returncode, done.stdout + done.stderr

    def effects(self) -> Counter[str]:
        return Counter(
            line.partition(" ")[0] for line in (self.root / "effects").read_text().splitlines()
        )

    @property
    def path(self) -> Path:
        return self.root / "tasks" / request_key(self.config)


def stage(root: Path, **env: object) -> Stage:
    own = {
        "name": "count",
        "serve": COUNTER,
        "target": None,
        "variant": None,
        "system_prompt": "Use {tool_names}.",
    }
    member = member_of(
        rules(**{**own, **env}),
        train=selection(("train",), num_tasks=30),
        held_out=held_out_rule("test", may_overlap=True),  # both splits have the same prompts
        weight=1.0,
    )
    return Stage(root, prepare_of({"count": member}, allow_missing_fraction=0.0, concurrency=32))


def test_a_served_environment_is_prepared_and_each_session_is_torn_down(tmp_path: Path) -> None:
    prepared = stage(tmp_path)
    code, said = prepared.finish()
    assert code == 0, said
    task_set = open_verified(prepared.path)
    assert task_set.num_tasks("train") == 30
    assert task_set.num_tasks("held_out") == 20
    assert prepared.effects() == {"init": 50, "teardown": 50}
    row = next(task_set.rows("train"))
    assert row.messages[0]["content"].startswith("Use clock, crash, inc,")
    assert row.messages[1] == {"role": "user", "content": "Count to 0."}
    assert {"inc", "submit"} <= {tool["function"]["name"] for tool in json.loads(row.tools)}


def test_an_address_where_nothing_listens_is_one_clear_message(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    code, said = stage(tmp_path, serve=None, target=url, create_timeout_s=1.0).finish()
    assert code == ExitCode.ENVIRONMENT, said
    assert f"environment count ({url}) does not answer" in said
    assert "Traceback" not in said
