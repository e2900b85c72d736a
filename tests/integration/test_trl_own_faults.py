"""What TRL's own OpenReward integration gets wrong (1.16.0), and xp's episodes under TRL do right: one test for each.

Elsewhere: an outage is void and never text for the model (tests/reliability/test_calls.py), a killed server costs one
deadline and not one a session (test_sessions.py), a forked process builds its own way (test_resources.py), an idle
session is kept alive and a server's second environment is reached by its name (test_sessions.py, test_catalog.py), an
unscored episode leaves the baseline (tests/trainers/test_trl.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fake_session import call
from tests.support.ors_server import Effects, rules, running
from tests.support.sections import sampling_of
from tests.support.tiny import tokenizer_and_model
from xp.backends.trl.worker.rollout import trl_rows
from xp.engines.conversation import Conversation, Opening, RolloutTurn
from xp.engines.play import EpisodePlay, Rollout
from xp.envs.base import Message, Task
from xp.envs.config import EpisodeConfig
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.testing.jobs import eventually

pytestmark = pytest.mark.integration
AWKWARD = "tests.envs_under_test.awkward:Awkward"
OTHER = "tests.envs_under_test.awkward:Other"
SAMPLING = sampling_of(400, 200, 2000)


class Script:
    """An engine that generates the same texts in every conversation; a further request fails the test."""

    is_generating = False

    def __init__(self, opening: Opening, texts: Sequence[str]) -> None:
        self.conversations = [Conversation(list(prompt)) for prompt in opening.prompts]
        self._deliver, self._texts = opening.deliver, texts

    def should_continue(self, is_live: bool) -> bool:
        return is_live

    def room(self, number: int) -> int:
        return SAMPLING.max_response_tokens - len(self.conversations[number].completion_ids)

    def begin(self, number: int) -> None:
        tokenizer, _ = tokenizer_and_model()
        conversation = self.conversations[number]
        text = self._texts[conversation.num_turns]
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        conversation.num_turns += 1
        conversation.append_policy_tokens(ids, [0.0] * len(ids))
        self._deliver(RolloutTurn(number, ids, False))

    def continue_with(self, number: int, reply: Sequence[int]) -> None:
        self.conversations[number].append_env_tokens(reply)
        self.begin(number)

    def end(self, number: int) -> None:
        pass

    def step(self, is_live: bool) -> None:
        raise AssertionError(is_live)

    def close(self) -> None:
        pass


def row(env: str, split: str, index: int) -> TaskRow:
    opening = (Message(role="user", content=f"a task of {split}"),)
    return TaskRow(f"{env}/{split}/{index}", env, Purpose.TRAIN, split, index, "h", opening, "[]", 1.0)


def mix_of(**changes: Any) -> EnvironmentMixture:
    """A mix of the servers of tests.support.ors_server, by their URL and key."""
    key = running(AWKWARD).server.key
    url = running(AWKWARD).server.url
    config = rules(name="awkward", target=url, variant="awkward", allowed_origins=(url,), **changes)
    return EnvironmentMixture(EpisodeConfig({"awkward": config}), {**os.environ, "OPENREWARD_API_KEY": key})


def played(mix: EnvironmentMixture, rows: Sequence[TaskRow], *texts: str) -> list[Rollout]:
    chat = ChatTokens(tokenizer_and_model()[0])
    return list(EpisodePlay(lambda opening: Script(opening, texts), chat, [(one, 0) for one in rows], mix))


def test_finished_ends_an_episode() -> None:
    with mix_of() as mix:
        (rollout,) = played(mix, [row("awkward", "train", 0)], call("leave"))
    assert (rollout.outcome.status, rollout.outcome.reward) == (EpisodeStatus.FINISHED, 1.0)


def test_no_session_outlives_its_episode() -> None:
    effects = Effects(running(AWKWARD).effects)
    with mix_of() as mix:
        played(mix, [row("awkward", "train", n) for n in range(6)], call("reward"), "enough")
        eventually(lambda: effects.count("teardown") >= 6)
    assert (effects.count("init"), effects.count("teardown")) == (6, 6)


def test_the_calls_of_a_turn_are_in_flight_together() -> None:
    with mix_of() as mix:
        rollouts = played(mix, [row("awkward", "train", n) for n in range(8)], call("meet"), "met")
    # Each of the eight waits for the others.
    assert [rollout.outcome.step_rewards for rollout in rollouts] == [(1.0,)] * 8


def test_evaluation_opens_tasks_of_the_split_that_it_was_asked_for() -> None:
    with mix_of() as mix:
        provider = mix._providers["awkward"]
        described = [provider.open(Task("awkward", split, 0)) for split in ("train", "test")]
        texts = [session.prompt()[0]["content"] for session in described]
        for session in described:
            session.close()
    assert texts == ["a task of train", "a task of test"]


def test_tools_may_have_the_names_that_a_rollout_uses_for_itself() -> None:
    with mix_of() as mix:
        (rollout,) = played(mix, [row("awkward", "train", 0)], call("reset"), call("reward"), "enough")
    assert rollout.outcome.step_rewards == (0.2, 0.3)


def test_a_schema_keeps_its_choices_its_items_and_its_defaults() -> None:
    with mix_of() as mix:
        session = mix._providers["awkward"].open(Task("awkward", "train", 0))
        (move,) = [tool for tool in session.tools() if tool.name == "move"]
        session.close()
    properties = move.parameters["properties"]
    assert properties["direction"]["enum"] == ["north", "south"]
    assert properties["steps"]["items"]["type"] == "integer"
    assert properties["quietly"]["default"] is True
    assert move.parameters["required"] == ["direction", "steps"]


def test_an_argument_that_was_left_out_is_not_sent_as_null() -> None:
    with mix_of() as mix:
        said = call("move", direction="north", steps=[1, 2])
        (rollout,) = played(mix, [row("awkward", "train", 0)], said, "enough")
    assert rollout.episode.turns[0].results[0].text == "north 3 True"


def test_task_specs_without_a_common_shape_reach_no_table_of_the_trainer() -> None:
    from datasets import Dataset

    rows = [row("awkward", "train", n) for n in range(8)]
    dataset = Dataset.from_list(trl_rows(rows))
    assert dataset.column_names == ["prompt"]
    with mix_of() as mix:
        assert {one.outcome.status for one in played(mix, rows, call("leave"))} == {EpisodeStatus.FINISHED}


def test_two_servers_in_one_run_are_two_servers() -> None:
    members = {"awkward": rules(name="awkward", serve=AWKWARD), "other": rules(name="other", serve=OTHER)}
    with EnvironmentMixture(EpisodeConfig(members), os.environ) as mix:
        found = {}
        for name in members:
            session = mix._providers[name].open(Task(name, "train", 0))
            found[name] = session.prompt()[0]["content"]
            session.close()
    assert found == {"awkward": "a task of train", "other": "another environment"}


def test_an_unknown_environment_is_a_fault_and_not_the_first() -> None:
    from xp.envs.base import EnvFault
    from xp.errors import XpError

    key = running(AWKWARD).server.key
    url = running(AWKWARD).server.url
    config = rules(name="ghost", target=url, variant="ghost", allowed_origins=(url,))
    with EnvironmentMixture(EpisodeConfig({"ghost": config}), {**os.environ, "OPENREWARD_API_KEY": key}) as mix:
        with pytest.raises((EnvFault, XpError)):
            mix._providers["ghost"].open(Task("ghost", "train", 0))


def test_a_proxy_of_the_shells_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with mix_of(retries_per_episode=0) as mix:
        (rollout,) = played(mix, [row("awkward", "train", 0)], call("leave"))
    assert rollout.outcome.status is EpisodeStatus.FINISHED
