"""Episodes under SkyRL: what its trainer gets of each batch, whatever the environment or the engine does."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.fake_session import RULES, FakeSession, OneAtATime, call
from tests.support.scripts import (
    DRAWN,
    ROW,
    SCRIPTS,
    DrawnMix,
    FakeMix,
    check_drawn,
    check_penalty,
    grade,
)
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from tests.trainers import skyrl_parts
from tests.trainers.skyrl_parts import (
    ScriptedClient,
    generator,
    native,
    play,
    request,
    train_config,
)
from xp.backends.skyrl.worker.train import write_view
from xp.envs.base import Task
from xp.envs.config import EnvConfig
from xp.envs.messages import chat_messages
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.spec.env import OnNoToolCall
from xp.tasks.row import TaskRow

ROOMY_LIMITS = ("training.max_tokens_per_turn=200", "training.max_response_tokens=600")
ROOMY = train_config(*ROOMY_LIMITS)
NO_RETRY = replace(RULES, limits=replace(RULES.limits, retries_per_episode=0))
OTHER = replace(ROW, task_id="fake/train/1", index=1)
CALLED = replace(
    OTHER,
    messages=tuple(
        chat_messages(
            [
                {"role": "user", "content": "play"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"name": "look", "arguments": {"room": "hall"}}],
                },
                {"role": "tool", "content": "a wall"},
            ]
        )
    ),
)
"""A task whose prompt has an earlier call."""


class CountedMix:
    """Fake sessions, of which no more may be open at the same time than the mix allows."""

    def __init__(
        self, rules: EnvConfig, max_sessions: int = 64, respond: Callable[..., Any] = grade
    ) -> None:
        self._rules = rules
        self._max_sessions = max_sessions
        self._respond = respond
        self.sessions: list[FakeSession] = []
        self.most_open = 0

    def episode(self, row: TaskRow) -> Episode:
        return Episode(
            Task(row.env, row.split, row.index),
            self._open,
            self._rules,
        )

    def scores_groups(self, env: str) -> bool:
        return False

    def max_sessions(self) -> int:
        return self._max_sessions

    def num_open(self) -> int:
        return sum(session.num_closed == 0 for session in self.sessions)

    def _open(self) -> FakeSession:
        self.sessions.append(FakeSession(self._respond))
        self.most_open = max(self.most_open, self.num_open())
        return self.sessions[-1]


def test_an_episode_keeps_its_own_turn_limit_whatever_skyrl_passes() -> None:
    mix: Any = FakeMix(replace(RULES, max_turns=3))
    batch = play(
        ScriptedClient([call("look")] * 9),
        mix,
        [ROW],
        ROOMY,
        max_turns=50,
    )
    outcome = batch.plays[0].episode.settle()
    assert outcome.num_turns == 3
    assert outcome.status == EpisodeStatus.TRUNCATED


def test_an_outage_is_void_and_the_others_of_its_batch_play_on() -> None:
    answers = iter([False, True] * 8)

    def respond(name: str, done_before: int) -> Any:
        return grade("down" if name == "win" and next(answers) else name, done_before)

    mix: Any = CountedMix(NO_RETRY, respond=respond)
    batch = play(ScriptedClient([call("win")]), mix, [ROW], ROOMY, 4)
    rewards = [sum(one) for one in batch.output["rewards"]]
    is_void = [reason == "void" for reason in batch.output["stop_reasons"]]
    assert sorted(rewards) == [0.0, 0.0, 1.0, 1.0]
    for reward, void, mask in zip(
        rewards,
        is_void,
        batch.output["loss_masks"],
        strict=True,
    ):
        assert void == (reward == 0.0) == (not any(mask))
    assert mix.num_open() == 0


def test_no_session_outlives_a_batch_that_failed() -> None:
    """SkyRL lets the first exception out, closes no environment, and leaves its other loops where they are."""
    mix: Any = CountedMix(RULES)
    client = ScriptedClient([call("move")] * 9, faults={"1_0": RuntimeError("the engine is gone")})
    with pytest.raises(RuntimeError, match="the engine is gone"):
        play(client, mix, [ROW, OTHER], ROOMY, 2)
    assert mix.sessions
    assert mix.num_open() == 0


def test_more_episodes_than_sessions_wait_for_their_turn() -> None:
    """All of SkyRL's threads would wait for a session that only they could end."""
    mix: Any = CountedMix(RULES, max_sessions=2)
    batch = play(
        ScriptedClient([call("look"), call("win")]),
        mix,
        [ROW, OTHER],
        ROOMY,
        8,
    )
    assert [sum(one) for one in batch.output["rewards"]] == [1.0] * 16
    assert mix.most_open <= 2
    assert len(mix.sessions) == 16


def test_episodes_that_wait_for_a_servers_only_session_leave_a_thread_to_the_one_that_has_it() -> (
    None
):
    mix: Any = CountedMix(RULES)
    mix._open = OneAtATime(mix._open)
    config = train_config(*ROOMY_LIMITS, "env.limits.max_sessions=8")  # as many threads as episodes
    batch = play(
        ScriptedClient([call("look"), call("win")]),
        mix,
        [ROW, OTHER],
        config,
        4,
    )
    assert [sum(one) for one in batch.output["rewards"]] == [1.0] * 8
    assert mix.most_open == 1


def test_the_prompt_is_the_one_that_other_trainers_read_tools_included() -> None:
    tools = (
        '[{"type": "function", "function": {"name": "move", "description": "", "parameters": {}}}]'
    )
    row = replace(ROW, tools=tools)
    client = ScriptedClient([call("win")])
    batch = play(client, FakeMix(RULES), [row], ROOMY)
    expected = ChatTokens(tokenizer_and_model()[0]).prompt(row.messages, tools)
    assert batch.output["prompt_token_ids"] == [client.asked[0]["ids"]] == [expected]
    assert "move" in tokenizer_and_model()[0].decode(expected)


def test_a_prompts_earlier_calls_reach_the_model() -> None:
    client = ScriptedClient([call("win")])
    batch = play(client, FakeMix(RULES), [CALLED], ROOMY)
    expected = ChatTokens(tokenizer_and_model()[0]).prompt(CALLED.messages, CALLED.tools)
    assert [one["ids"] for one in client.asked] == [expected]
    assert batch.plays[0].task.messages == CALLED.messages


def test_what_a_chat_template_refuses_is_void_and_ends_no_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SkyRL renders a dialogue with a system message itself, and every prompt to count its tokens."""
    from skyrl.train.dataset import PromptDataset

    from xp.backends.skyrl.worker.prompts import UncountedPrompts

    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    refused = "m.role == 'system' or 'moved' in m.content"
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{% if {refused} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{{% endfor %}}"
        f"{tokenizer.chat_template}"
    )
    monkeypatch.setattr(skyrl_parts, "tokenizer_and_model", lambda: (tokenizer, None))
    batch = play(
        ScriptedClient([call("move"), call("win")]),
        FakeMix(RULES),
        [ROW],
        ROOMY,
        2,
    )
    outcomes = [one.episode.settle() for one in batch.plays]
    assert {one.status for one in outcomes} == {EpisodeStatus.VOID}
    assert "does not render a dialogue: TemplateError: no" in str(outcomes[0].void_reason)
    assert not any(map(any, batch.output["loss_masks"]))
    write_view([ROW, CALLED], tmp_path / "view.parquet")
    dataset = PromptDataset(
        [str(tmp_path / "view.parquet")],
        UncountedPrompts(),
        10,
        num_workers=0,
    )
    assert len(dataset) == 2


def test_a_turn_that_was_cut_is_ended_by_the_environments_own_token() -> None:
    config = train_config("training.max_tokens_per_turn=5", "training.max_response_tokens=600")
    client = ScriptedClient(["a rather long turn that says nothing at all", call("win")])
    mix: Any = FakeMix(replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE, max_turns=2))
    batch = play(client, mix, [ROW], config)
    tokenizer, _ = tokenizer_and_model()
    second = client.asked[1]["ids"]
    (prompt,) = batch.output["prompt_token_ids"]
    assert second[len(prompt) + 5] == tokenizer.eos_token_id
    assert batch.output["loss_masks"][0][:6] == [1] * 5 + [0]


def test_a_response_stays_within_its_limit_with_a_shorter_last_turn() -> None:
    config = train_config("training.max_tokens_per_turn=200", "training.max_response_tokens=90")
    client = ScriptedClient([call("look")] * 9)
    batch = play(client, FakeMix(RULES), [ROW], config)
    outcome = batch.plays[0].episode.settle()
    (prompt,) = batch.output["prompt_token_ids"]
    (ids,) = batch.output["response_ids"]
    assert [one["max_tokens"] for one in client.asked] == [
        90 - (len(one["ids"]) - len(prompt)) for one in client.asked
    ]
    assert len(ids) <= 90
    assert outcome.status is EpisodeStatus.TRUNCATED


@pytest.mark.parametrize(("phase", "limit"), [("train", 90), ("eval", 150)])
def test_a_held_out_episode_has_a_limit_of_its_own(phase: str, limit: int) -> None:
    config = train_config("training.max_response_tokens=90", "evaluation.max_response_tokens=150")
    batch = play(
        ScriptedClient([call("look")] * 9),
        FakeMix(RULES),
        [ROW],
        config,
        phase=phase,
    )
    (ids,) = batch.output["response_ids"]
    assert limit - 60 < len(ids) <= limit


@pytest.mark.parametrize("phase", ["train", "eval"])
def test_only_a_trained_episode_has_the_penalty_and_skyrls_filter_does_not_see_it(
    phase: str,
) -> None:
    (script,) = [script for script in SCRIPTS if script.name == "scores on the way"]
    config = train_config(
        "training.max_response_tokens=2000", "algorithm.overlong={buffer_tokens: 1990, factor: 0.5}"
    )
    batch = play(
        ScriptedClient(list(script.texts)), FakeMix(script.rules), [ROW], config, phase=phase
    )
    outcome = batch.plays[0].episode.settle()
    (ids,) = batch.output["response_ids"]
    (rewards,) = batch.output["rewards"]
    assert rewards[-1] == outcome.task_reward
    if phase == "train":
        check_penalty(outcome, len(ids), script)
    else:
        assert outcome.unpenalized is None


@pytest.mark.parametrize("is_masked", [False, True])
def test_truncated_episodes_leave_the_loss_but_keep_their_reward(is_masked: bool) -> None:
    config = train_config(
        "training.max_tokens_per_turn=200",
        f"algorithm.mask_truncated={is_masked}",
        "training.max_response_tokens=600",
    )
    batch = play(
        ScriptedClient([call("move")] * 9),
        FakeMix(RULES),
        [ROW],
        config,
    )
    assert any(batch.output["loss_masks"][0]) is not is_masked
    assert sum(batch.output["rewards"][0]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("It was the butler, I am sure.", EpisodeStatus.TRUNCATED),
        (f"{call('win')} I am sure.", EpisodeStatus.FINISHED),
        ("It was the bu", EpisodeStatus.STOPPED),
    ],
    ids=["cut", "cut after a complete call", "a text ends the turn at its limit"],
)
def test_a_cut_last_turn_truncates_unless_its_call_ended_it(
    text: str, status: EpisodeStatus
) -> None:
    tokenizer, _ = tokenizer_and_model()
    whole = text.removesuffix(" I am sure.").removesuffix("tler, I am sure.")
    limit = len(tokenizer(whole, add_special_tokens=False)["input_ids"])
    config = train_config(
        f"training.max_tokens_per_turn={limit}",
        "training.stop=[bu]",
        "algorithm.mask_truncated=true",
    )
    batch = play(ScriptedClient([text]), FakeMix(RULES), [ROW], config)
    assert len(batch.output["response_ids"][0]) == limit
    assert batch.plays[0].episode.settle().status is status
    assert any(batch.output["loss_masks"][0]) is (status is not EpisodeStatus.TRUNCATED)


def test_special_tokens_inside_a_turn_reach_the_episode_as_they_were_written() -> None:
    """SkyRL hands over the engine's text, from which special tokens are gone: another call than the model wrote."""
    mix: Any = FakeMix(RULES)
    text = call("look", where="<|im_start|>")
    play(ScriptedClient([text, call("win")]), mix, [ROW], ROOMY)
    assert mix.episodes[0].turns[0].text == text


def test_every_turn_has_its_own_seed_repeated_by_the_run() -> None:
    """SkyRL's engines all have one seed, and its requests have none."""

    def seeds(*overrides: str, num_steps: int = 1, step: int = 1) -> list[int]:
        config = train_config(*ROOMY_LIMITS, *overrides)
        client = ScriptedClient([call("look"), call("win")])
        made = generator(client, FakeMix(RULES), config)
        for at in range(num_steps):
            wanted = request([ROW, ROW, OTHER], 2, config)
            wanted["batch_metadata"] = replace(wanted["batch_metadata"], global_step=step + at)
            client._turns.clear()
            asyncio.run(made.generate(wanted))
            made.played(wanted)
        return sorted(one["seed"] for one in client.asked)

    found = seeds(num_steps=2)
    assert len(found) == len(set(found)) == 2 * 6 * 2
    assert all(0 <= seed < 2**63 for seed in found)
    assert seeds(num_steps=2) == found
    assert set(seeds(step=2)) < set(found)
    assert not {*seeds("seed=7")} & {*found}


def test_skyrls_engine_batch_and_record_have_the_live_prompt() -> None:
    config = train_config(*ROOMY_LIMITS, "training.max_prompt_tokens=400", "record_prompts=true")
    chat = ChatTokens(tokenizer_and_model()[0], config.spec.model)
    mix = DrawnMix()
    client = ScriptedClient([call("win")])
    batch = play(client, mix, [ROW], config, len(DRAWN))
    output = batch.output
    episodes = [one.episode for one in batch.plays]
    check_drawn(
        episodes, chat, output["prompt_token_ids"], [any(mask) for mask in output["loss_masks"]]
    )
    asked = [
        chat.prompt(one.opening, ROW.tools) for one in episodes if one.settle().reward is not None
    ]
    assert sorted(one["ids"] for one in client.asked) == sorted(asked)
    is_void = [one.settle().reward is None for one in episodes]
    assert [reason == "void" for reason in output["stop_reasons"]] == is_void
    for one in batch.plays:
        record = one.trajectory("r", "train", 0)
        assert list(record.messages[:1]) == list(one.episode.opening)
        if one.episode.settle().reward is not None:
            assert record.prompt == chat.rendered(record.messages[:1], ROW.tools)


def test_tokens_of_pictures_are_never_sampled(tmp_path: Path) -> None:
    content = {"model_type": "qwen3_vl", "vision_config": {"depth": 1}, "image_token_id": 7}
    text = {"model_type": "qwen3_vl_text", "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**content, "text_config": text}))
    model = replace(ROOMY.spec.model, path=str(tmp_path))
    config = replace(ROOMY, spec=replace(ROOMY.spec, model=model))
    client = ScriptedClient([call("win")])
    play(client, FakeMix(NO_RETRY), [ROW], config)
    assert {tuple(asked["logit_bias"].items()) for asked in client.asked} == {((7, -100.0),)}


class RoutingClient(ScriptedClient):
    """Returns experts as SkyRL's vLLM does: from the asked position to the last token but one, two of one layer."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        answer = await super().generate(input_batch, model)
        (prompt,) = input_batch["prompt_token_ids"]
        (ids,) = answer["response_ids"]
        (start,) = input_batch["routed_experts_prompt_starts"]
        first = np.arange(start, len(prompt) + len(ids) - 1)
        experts = np.stack([first % 7, first % 5], axis=-1)[:, None, :]
        return {**answer, "rollout_expert_indices": [experts]}


def test_the_update_gets_the_experts_of_all_turns() -> None:
    cfg = train_config(*ROOMY_LIMITS)
    mix: Any = FakeMix(RULES)
    client = RoutingClient([call("look"), call("win")])
    engine = replace(native(cfg).generator.inference_engine, enable_return_routed_experts=True)
    batch = play(client, mix, [ROW], cfg, inference_engine=engine)
    (prompt,) = batch.output["prompt_token_ids"]
    (ids,) = batch.output["response_ids"]
    (experts,) = batch.output["rollout_expert_indices"]
    positions = np.arange(len(prompt) + len(ids) - 1)
    assert experts[:, 0, 0].tolist() == (positions % 7).tolist()
    assert experts[:, 0, 1].tolist() == (positions % 5).tolist()
