"""Contract of providers: a subclass of `ProviderSuite` with your provider inherits the tests."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from xp.composition import compose
from xp.envs.base import EnvFault, Message, Provider, Task
from xp.envs.config import load_provider
from xp.planning.episode import episode_config


class ProviderSuite:
    """Base of a provider's tests. Subclasses define the fixtures `provider` (of class scope) and `closed`."""

    split = "train"
    has_stable_prompt = True
    """True if two sessions on one task begin with the same messages."""
    num_visits = 32
    """Sessions that are opened from 16 threads."""

    @pytest.fixture
    def task(self, provider: Provider) -> Task:
        return provider.tasks(self.split, [0])[0]

    def test_its_version_is_a_string_and_the_same_when_asked_again(
        self, provider: Provider
    ) -> None:
        assert isinstance(provider.version(), str)
        assert provider.version() == provider.version()

    def test_its_splits_have_names_and_tasks(self, provider: Provider) -> None:
        splits = provider.splits()
        assert self.split in splits
        assert len(set(splits)) == len(splits)
        assert provider.num_tasks(self.split) > 0

    def test_an_unknown_split_is_a_fault(self, provider: Provider) -> None:
        with pytest.raises(EnvFault):
            provider.num_tasks("no such split")

    def test_tasks_come_in_the_order_asked_for_and_know_their_place(
        self, provider: Provider
    ) -> None:
        last = provider.num_tasks(self.split) - 1
        indices = [last, 0, last // 2, 0]
        tasks = provider.tasks(self.split, indices)
        assert [task.index for task in tasks] == indices
        assert {task.split for task in tasks} == {self.split}
        assert tasks[1].spec == tasks[3].spec
        assert tasks[0].spec == provider.tasks(self.split, [last])[0].spec

    def test_no_indices_are_no_tasks(self, provider: Provider) -> None:
        assert provider.tasks(self.split, []) == []

    @pytest.mark.parametrize("offset", [-1, 0, 1_000_000])
    def test_an_index_outside_of_the_split_is_refused(
        self, provider: Provider, offset: int
    ) -> None:
        outside = offset if offset < 0 else provider.num_tasks(self.split) + offset
        with pytest.raises(ValueError):
            provider.tasks(self.split, [outside])
        with pytest.raises(EnvFault):
            provider.open(Task("x", self.split, outside))

    def test_a_task_tells_nothing_of_its_answer_by_its_repr(self, task: Task) -> None:
        assert "spec" not in repr(task)

    def test_a_session_opens_with_messages_that_a_chat_template_takes(
        self, provider: Provider, task: Task
    ) -> None:
        with closing(provider.open(task)) as session:
            prompt = session.prompt()
        assert prompt
        assert all(
            {"role", "content"} <= set(message) <= set(Message.__annotations__)
            for message in prompt
        )
        assert {message["role"] for message in prompt} <= {"system", "user", "assistant", "tool"}
        assert all(isinstance(message["content"], str) for message in prompt)

    def test_a_task_without_its_spec_opens_the_same_problem(
        self, provider: Provider, task: Task
    ) -> None:
        if self.has_stable_prompt:
            bare = Task(task.env, task.split, task.index)
            with closing(provider.open(bare)) as session, closing(provider.open(task)) as other:
                assert session.prompt() == other.prompt()

    def test_its_tools_have_names_and_object_schemas(self, provider: Provider, task: Task) -> None:
        with closing(provider.open(task)) as session:
            tools = session.tools()
            assert tools or session.takes_answer
            assert session.tools() == tools
        assert len({tool.name for tool in tools}) == len(tools)
        for tool in tools:
            assert tool.name
            assert tool.parameters.get("type", "object") == "object"
            json.dumps(dict(tool.parameters), allow_nan=False)

    def test_an_unknown_tool_is_the_models_fault_and_the_session_goes_on(
        self, provider: Provider, task: Task
    ) -> None:
        with closing(provider.open(task)) as session:
            for _ in range(2):
                result = session.call("no_such_tool", {})
                assert result.is_call_error
                assert result.text
                assert not result.finished

    def test_every_result_is_typed(self, provider: Provider, task: Task) -> None:
        session = provider.open(task)
        for tool in session.tools():
            for arguments in ({}, {"no_such_argument": [None]}):
                try:
                    result = session.call(tool.name, arguments)
                except EnvFault:
                    session.close()
                    session = provider.open(task)
                    continue
                assert isinstance(result.text, str)
                assert result.reward is None or math.isfinite(result.reward)
                assert isinstance(result.finished, bool)
        session.close()

    def test_a_closed_session_stays_closed(self, provider: Provider, task: Task) -> None:
        session = provider.open(task)
        session.close()
        session.close()
        with pytest.raises(EnvFault):
            session.call("anything", {})

    def test_sessions_may_be_opened_from_many_threads(self, provider: Provider, task: Task) -> None:
        def visit(_: int) -> int:
            with closing(provider.open(task)) as session:
                return len(session.prompt())

        with ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(visit, range(self.num_visits)))) == 1

    def test_a_closed_provider_opens_nothing(self, closed: Provider) -> None:
        closed.close()
        with pytest.raises(EnvFault):
            closed.open(Task("x", self.split, 0))


def provider_of(*words: str) -> Provider:
    """The provider of a spec's only environment.

    Args:
        words: overrides, including `env=...`.
    """
    (member,) = episode_config(compose(words)).members.values()
    return load_provider(member, os.environ)


def lent(provider: Provider) -> Iterator[Provider]:
    """Lends a provider to the tests of a fixture, then closes it."""
    yield provider
    provider.close()
