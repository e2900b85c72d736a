"""Tasks that change after they were prepared, at a URL or in a file of rows: nothing is scored on the wrong task."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.reliability.proxy import FaultProxy
from tests.support.cases import few
from tests.support.ors_server import rules
from tests.support.sections import held_out_rule, member_of, prepare_of, selection
from xp.envs.local_server import LocalServer
from xp.errors import ExitCode, XpError
from xp.tasks.load import load_tasks
from xp.tasks.prepare import prepare

Load = Callable[[str], int]


def server(revision: str) -> LocalServer:
    environ = {**os.environ, "REVISION": revision, "XP_PASS_ENV": "REVISION"}
    return LocalServer("tests.envs_under_test.counter:Deployed", environ=environ)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Prepares training tasks; the function deploys a revision at their address and loads them for a training."""
    root = tmp_path_factory.mktemp("outputs")
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("OPENREWARD_API_KEY", "any")
        proxy = stack.enter_context(FaultProxy(stack.enter_context(server("first"))))
        env = rules(target=proxy.url, serve=None, allowed_origins=(proxy.url,))
        held_out = held_out_rule("train", fraction=0.25)
        config = prepare_of({env.name: member_of(env, selection(), held_out)}, 0.0, 8)
        made = prepare(config, os.environ, root)
        (root / "prepare.json").write_text(config.to_json())

        def loaded(revision: str) -> int:
            if revision != "first":
                proxy.upstream = stack.enter_context(server(revision))
            return len(load_tasks(made.path, root, "train"))

        yield loaded


def test_descriptions_that_differ_while_the_prompts_are_the_same_are_said(
    load: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    num_tasks = load("first")
    assert num_tasks > 0
    assert "differently" not in capsys.readouterr().out
    assert load("signed") == num_tasks
    assert (
        f"describes {num_tasks} of {num_tasks} tasks differently now; their prompts are the same"
        in (capsys.readouterr().out)
    )


@pytest.mark.parametrize("revision", few(["reversed", "fewer"], 1))
def test_other_tasks_than_prepared_end_the_stage_before_episodes(load: Load, revision: str) -> None:
    with pytest.raises(XpError, match="has other tasks than those that were prepared") as raised:
        load(revision)
    assert raised.value.code is ExitCode.TASKS
    assert "start a new run" in str(raised.value)
