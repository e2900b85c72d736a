"""What TRL's own OpenReward integration gets wrong (1.16.0), and xp's episodes under TRL do right.

Elsewhere: an outage is void and never text for the model (tests/reliability/test_calls.py), sessions are closed, a
killed server costs one deadline, and an idle session is kept alive (test_sessions.py), a forked process builds its own
way (test_resources.py), a tool may have any name and an argument that was left out is not sent (test_specs.py), a
server's second environment is reached by its name (test_catalog.py), the calls of a turn run concurrently
(test_trl_pace.py), an unscored episode leaves the baseline (tests/trainers/test_trl.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.ors_server import rules, running
from xp.envs.base import EnvFault, Session, Task
from xp.envs.openreward import OpenRewardProvider
from xp.errors import XpError

pytestmark = pytest.mark.integration
AWKWARD = "tests.envs_under_test.awkward:Awkward"
OTHER = "tests.envs_under_test.awkward:Other"


@contextmanager
def opened(
    split: str = "train", environ: Mapping[str, str] = os.environ, **changes: Any
) -> Iterator[Session]:
    provider = OpenRewardProvider(rules(name="awkward", **changes), environ)
    try:
        session = provider.open(Task("awkward", split, 0))
        yield session
        session.close()
    finally:
        provider.close()


@contextmanager
def visited(split: str = "train", variant: str = "awkward") -> Iterator[Session]:
    """A session on the server of tests.support.ors_server, by its URL and key."""
    url = running(AWKWARD).server.url
    environ = {**os.environ, "OPENREWARD_API_KEY": running(AWKWARD).server.key}
    with opened(split, environ, target=url, variant=variant, allowed_origins=(url,)) as session:
        yield session


def test_evaluation_opens_tasks_of_the_split_that_it_was_asked_for() -> None:
    for split in ("train", "test"):
        with visited(split) as session:
            assert session.prompt()[0]["content"] == f"a task of {split}"


def test_a_schema_keeps_its_choices_its_items_and_its_defaults() -> None:
    with visited() as session:
        (move,) = session.tools()
    properties = move.parameters["properties"]
    assert properties["direction"]["enum"] == ["north", "south"]
    assert properties["steps"]["items"]["type"] == "integer"
    assert properties["quietly"]["default"] is True
    assert move.parameters["required"] == ["direction", "steps"]


def test_two_servers_in_one_run_are_two_servers() -> None:
    for serve, prompt in ((AWKWARD, "a task of train"), (OTHER, "another environment")):
        with opened(serve=serve) as session:
            assert session.prompt()[0]["content"] == prompt


def test_an_unknown_environment_is_a_fault_and_not_the_first() -> None:
    with pytest.raises((EnvFault, XpError)), visited(variant="ghost"):
        pass


def test_a_proxy_of_the_shells_is_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with visited() as session:
        assert session.prompt()
