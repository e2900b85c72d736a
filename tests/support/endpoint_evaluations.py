"""Evaluations of an endpoint whose model knows some products: command, task set and result."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer
from xp.composition import compose
from xp.planning.stages import prepare_config
from xp.results.evaluation.records import EPISODES
from xp.tasks.prepare import prepare

ROOT = Path(__file__).resolve().parents[2]
TASKS = ("env.train.num_tasks=1", "env.held_out.num_tasks=150")


def knows_some(body: Mapping[str, Any]) -> dict[str, Any]:
    """Right where the product is no multiple of three."""
    one, other = map(int, re.findall(r"\d+", body["messages"][-1]["content"]))
    product = one * other
    return {"content": f"\\boxed{{{product if product % 3 else product + 1}}}"}


def words(server: ChatServer, outputs: Path, *more: str) -> list[str]:
    own = [
        f"outputs={outputs}",
        "env=multiply",
        *TASKS,
        "model=endpoint",
        f"model.url={server.url}",
        "model.name=stub",
    ]
    return ["eval", *own, *more]


def result_in(outputs: Path) -> dict[str, Any]:
    (file,) = (outputs / "evaluations").glob("*/eval.json")
    value: dict[str, Any] = json.loads(file.read_text())
    return value


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root that has the task set."""
    outputs = tmp_path_factory.mktemp("outputs")
    prepare(prepare_config(compose(["env=multiply", *TASKS])), os.environ, outputs)
    return outputs


@pytest.fixture
def outputs(prepared: Path, tmp_path: Path) -> Path:
    """A fresh root with the same task set."""
    (tmp_path / "tasks").symlink_to(prepared / "tasks")
    return tmp_path


def records_of(outputs: Path) -> list[dict[str, Any]]:
    (file,) = (outputs / "evaluations").glob(f"*/{EPISODES}")
    return [json.loads(line) for line in file.read_text().splitlines()]
