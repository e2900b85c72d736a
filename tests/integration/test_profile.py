"""`tasks profile` plays the training tasks; a training selects by their pass rates, and its order is theirs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from xp.__main__ import main
from xp.composition import compose
from xp.errors import ExitCode
from xp.planning.stages import prepare_config
from xp.tasks.config import Purpose
from xp.tasks.prepare import prepare

NUM_TASKS = 30
TRIES = 2
ENV = ("env=multiply", "env.held_out.num_tasks=10")
PROFILED = (*ENV, f"env.train.num_tasks={NUM_TASKS}")


def product_of(messages: Any) -> int:
    one, other = map(int, re.findall(r"\d+", messages[-1]["content"]))
    return one * other


class Half:
    """Writes right answers where the product is no multiple of three, in the second round only where it is even."""

    def __init__(self) -> None:
        self._num_asked = 0

    def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        product = product_of(body["messages"])
        is_second = self._num_asked >= NUM_TASKS
        self._num_asked += 1
        is_right = product % 3 != 0 and (product % 2 != 0 or is_second)
        return {"content": f"\\boxed{{{product if is_right else product + 1}}}"}


def rate_of(product: int) -> float:
    if product % 3 == 0:
        return 0.0
    return 0.5 if product % 2 == 0 else 1.0


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root with one profile."""
    found = tmp_path_factory.mktemp("outputs")
    with serving(ChatServer(write=Half())) as server:
        own = (
            "model=endpoint",
            f"model.url={server.url}",
            "model.name=stub",
            f"outputs={found}",
            "eval.concurrency=1",
        )
        assert main(["tasks", "profile", *PROFILED, *own, "--tries", str(TRIES)]) == 0
    return found


def profile_in(outputs: Path) -> str:
    (place,) = (outputs / "evaluations").iterdir()
    return place.name


def of_plan(outputs: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    capsys.readouterr()
    own = (
        *ENV,
        f"outputs={outputs}",
        f"env.train.profile={profile_in(outputs)}",
        "training.prompts_per_step=4",
    )
    code = main(["plan", *own, "training.num_steps=2", "training.micro_batch_size=4", *more])
    found = capsys.readouterr()
    return code, found.out + found.err


def products(outputs: Path, *more: str) -> list[int]:
    """Products of the training tasks of a set that a profile selected, in their order."""
    own = (*ENV, f"outputs={outputs}", f"env.train.profile={profile_in(outputs)}", *more)
    found = prepare(prepare_config(compose(own)), os.environ, outputs)
    return [product_of(row.messages) for row in found.rows(Purpose.TRAIN)]


def test_a_set_has_the_tasks_within_the_bounds_and_no_other(outputs: Path) -> None:
    every = products(outputs)
    assert len(every) == NUM_TASKS
    found = products(outputs, "env.train.pass_rate=[0.4,0.6]")
    assert found == [one for one in every if rate_of(one) == 0.5]
    assert 0 < len(found) < NUM_TASKS
    assert (
        products(outputs, "env.train.pass_rate=[0.5,1.0]", "env.train.num_tasks=3")
        == [one for one in every if rate_of(one) >= 0.5][:3]
    )


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (
            ("env.train.pass_rate=[0.8,0.9]",),
            ExitCode.PLAN,
            "no task has a pass rate of 0.8 to 0.9",
        ),
        (
            ("env.train.easy_first=true", "training.shuffle=true"),
            ExitCode.PLAN,
            "set training.shuffle=false",
        ),
        (("env.train.pass_rate=[0.9,0.1]",), ExitCode.CONFIG, "[lowest, highest]"),
        (("env=whodunit_mini",), ExitCode.CONFIG, "is of another environment"),
    ],
)
def test_what_cannot_be_selected_is_refused_with_the_reason(
    outputs: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    code: ExitCode,
    says: str,
) -> None:
    found, said = of_plan(outputs, capsys, *more)
    assert (found, says in said) == (code, True), said
    assert "Traceback" not in said
