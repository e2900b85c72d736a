"""An endpoint: what is asked, what is tried again, and where its key goes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, Reply, serving
from tests.support.fake_session import RULES, TASK, FakeSession
from tests.support.sections import replace
from tests.support.task_rows import row
from xp.envs.base import Message, ToolResult
from xp.envs.chat_api import Api, DialogueFails, TooLong, Unavailable
from xp.episode.dialects import SYNTAX
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.outcome import Reply as EpisodeReply
from xp.episode.tool_calls import MalformedCall
from xp.errors import ExitCode, XpError
from xp.results.evaluation.play import Dialogue, play_dialogue
from xp.results.evaluation.settings import ToolCalls, settings
from xp.spec.dialect import Dialect

SECRET = "sk-" + "a1B2c3D4" * 4
MESSAGES = [{"role": "user", "content": "Say 'hi'."}]
ECHO = {
    "type": "function",
    "function": {
        "name": "echo",
        "description": "Say it.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}


def api(
    server: ChatServer, secret: str | None = None, pauses: list[float] | None = None, **given: Any
) -> Api:
    endpoint = settings(
        {"model.url": server.url, **{f"model.{name}": value for name, value in given.items()}}
    ).model
    noted = [] if pauses is None else pauses
    return Api(
        endpoint,
        "stub",
        secret,
        noted.append,
        max_attempts=endpoint.max_attempts,
    )


def refusing(*replies: Reply) -> ChatServer:
    """Answers the first requests so, and the others as its model does."""
    return ChatServer(before=lambda number: replies[number - 1] if number <= len(replies) else None)


def test_a_request_says_model_messages_tools_and_limits() -> None:
    with serving(ChatServer()) as server:
        answer = api(server, limit_name="max_completion_tokens", seed=3).ask(
            MESSAGES, [ECHO], 0.7, 0.9
        )
    (asked,) = server.requests
    assert 0 <= asked.pop("seed") < 2**31
    assert asked == {
        "model": "stub",
        "messages": MESSAGES,
        "tools": [ECHO],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_completion_tokens": 1024,
    }
    assert answer.prompt_tokens == 10
    assert answer.completion_tokens == 5


def test_a_busy_endpoint_is_asked_again_no_earlier_than_it_wishes() -> None:
    pauses: list[float] = []
    with serving(refusing((429, {"Retry-After": "7"}, {}), (503, {}, {}))) as server:
        api(server, pauses=pauses).ask(MESSAGES, [], 0.0)
    assert len(server.requests) == 3
    assert pauses[0] >= 7
    assert pauses[1] < 7


def test_an_endpoint_that_never_answers_is_given_up_with_its_last_words() -> None:
    with serving(
        ChatServer(before=lambda _: (500, {}, {"error": {"message": "out of memory"}}))
    ) as server:
        with pytest.raises(Unavailable, match="in 3 tries; the last one: HTTP 500: out of memory"):
            api(server, max_attempts=3).ask(MESSAGES, [], 0.0)
    assert len(server.requests) == 3 + 1  # and a dialogue of one word, to see whether it lives


def test_a_dialogue_that_breaks_off_is_told_from_a_dead_endpoint() -> None:
    with (
        serving(refusing((500, {}, {}), (500, {}, {}))) as server,
        pytest.raises(DialogueFails, match="HTTP 500"),
    ):
        api(server, max_attempts=2).ask(MESSAGES, [], 0.0)


FILTERED = {"error": {"message": "refused", "code": "content_filter"}}
NO_MESSAGE: dict[str, Reply] = {
    "400": (400, {}, FILTERED),
    "no choices": (200, {}, {"choices": []}),
    "a number": (200, {}, {"choices": [{"message": {"content": 7}}]}),
    "parts without a type": (200, {}, {"choices": [{"message": {"content": [{"text": "7"}]}}]}),
    "filtered": (
        200,
        {},
        {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]},
    ),
}


@pytest.mark.parametrize("name", NO_MESSAGE)
def test_a_dialogue_that_has_no_message_fails_alone_where_others_are_answered(name: str) -> None:
    with serving(refusing(NO_MESSAGE[name])) as server:
        with pytest.raises(DialogueFails, match="answers other dialogues"):
            api(server, seed=3).ask(MESSAGES, [ECHO], 0.7)
        assert api(server).ask(MESSAGES, [], 0.0).completion_tokens == 5
    dialogue, hello, _ = server.requests
    assert hello == {**dialogue, "messages": [{"role": "user", "content": "Hello"}]}


def test_another_answer_without_a_message_by_chance_does_not_end_the_evaluation() -> None:
    with serving(refusing(NO_MESSAGE["no choices"], NO_MESSAGE["no choices"])) as server:
        with pytest.raises(DialogueFails, match="answers other dialogues"):
            api(server).ask(MESSAGES, [], 0.0)
    assert len(server.requests) == 3


@pytest.mark.parametrize("name", NO_MESSAGE)
def test_an_endpoint_that_gives_nobody_a_message_stops_the_evaluation(name: str) -> None:
    with serving(ChatServer(before=lambda _: NO_MESSAGE[name])) as server:
        with pytest.raises(XpError, match=r"HTTP 4\d\d: refused|does not speak") as caught:
            api(server).ask(MESSAGES, [], 0.0)
    assert caught.value.code is ExitCode.ENVIRONMENT


TEXT = {"type": "text", "text": "It is "}
PARTS: list[tuple[Any, str | None]] = [
    ([TEXT, {"type": "text", "text": "7."}], "It is 7."),
    ([{"type": "thinking", "thinking": [TEXT]}, {"type": "output_text", "text": "7"}], "7"),
    ([{"type": "reasoning", "text": "I think."}], ""),
    (None, None),
]


@pytest.mark.parametrize(("content", "text"), PARTS)
def test_the_texts_of_a_content_in_parts_are_the_message(content: Any, text: str | None) -> None:
    with serving(ChatServer(write=lambda _: {"content": content})) as server:
        message = api(server).ask(MESSAGES, [], 0.0).message
    assert message["content"] == text
    dialogue = Dialogue(row([]), RULES, ToolCalls.NATIVE)
    assert dialogue.written(message) == (text or "")
    dialogue.add(message, EpisodeReply((), EpisodeStatus.ONGOING))
    assert dialogue.messages[-1] == {"role": "assistant", "content": text or ""}


NASTY = [
    "<think>x</think>",
    "</think>",
    "</tool_call>",
    "</parameter>",
    "</arg_value>",
    "<|end|>",
    ")]",
    "\n<think>",
]


@pytest.mark.parametrize(
    "said",
    ["", "<think>I never close", "<tool_call>"],
)
@pytest.mark.parametrize("dialect", [one for one in SYNTAX if one is not Dialect.ACTION])
def test_a_native_call_reaches_the_environment_as_it_is(dialect: Dialect, said: str) -> None:
    def write(body: dict[str, Any]) -> dict[str, Any]:
        function = {
            "name": "echo",
            "arguments": json.dumps({"text": NASTY[len(body["messages"]) // 2]}),
        }
        return {
            "content": said,
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        }

    rules = replace(RULES, dialect=dialect, max_turns=len(NASTY))
    session = FakeSession(lambda name, _: ToolResult(name))
    episode = Episode(TASK, lambda: session, rules)
    with serving(ChatServer(write=write)) as server:
        asked = api(server)
        play_dialogue(
            lambda one: asked.ask(one.messages, one.schemas, 0.0),
            Dialogue(row([ECHO]), rules, ToolCalls.NATIVE),
            episode,
        )
    assert session.calls == [("echo", {"text": text}) for text in NASTY]
    assert episode.settle().num_malformed == 0


def test_a_dialogue_beyond_the_context_is_no_fault() -> None:
    reply = (400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}})
    with serving(refusing(reply)) as server, pytest.raises(TooLong):
        api(server).ask(MESSAGES, [], 0.0)


def test_a_refused_request_is_not_repeated_nor_the_key_shown() -> None:
    reply = (401, {}, {"error": {"message": f"Incorrect API key provided: {SECRET}"}})
    with serving(refusing(reply)) as server:
        with pytest.raises(XpError, match="refuses the key") as caught:
            api(server, SECRET, key="MY_KEY").ask(MESSAGES, [], 0.0)
    assert caught.value.code is ExitCode.SECRET
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(api(server, SECRET))
    assert len(server.requests) == 1
    assert server.headers[0]["authorization"] == f"Bearer {SECRET}"


def test_a_redirect_is_not_followed_and_the_key_stays() -> None:
    with serving(ChatServer()) as other:
        with serving(refusing((307, {"Location": f"{other.url}/chat/completions"}, {}))) as server:
            with pytest.raises(XpError, match="redirects are not followed"):
                api(server, SECRET).ask(MESSAGES, [], 0.0)
    assert other.requests == []


def test_a_key_does_not_travel_in_the_clear() -> None:
    endpoint = settings({"model.url": "http://models.example.com/v1"}).model
    with pytest.raises(XpError, match="in the clear"):
        Api(endpoint, "m", SECRET)
    Api(endpoint, "m", None)


def test_a_key_instead_of_its_variable_is_refused_and_not_repeated() -> None:
    for key in (SECRET, SECRET.replace("-", "_")):
        with pytest.raises(XpError, match="never the key itself") as caught:
            settings({"model.key": key})
        assert key not in str(caught.value)
    with pytest.raises(XpError) as caught:
        settings({"model.url": f"https://user:{SECRET}@example.com/v1"})
    assert SECRET not in str(caught.value)


def test_a_native_call_is_read_and_answered_by_its_id() -> None:
    dialogue = Dialogue(row([ECHO]), RULES, ToolCalls.NATIVE)
    function = {"name": "echo", "arguments": '{"text": "hi"}'}
    message = {
        "content": "Now.",
        "tool_calls": [{"id": "c7", "type": "function", "function": function}] * 2,
    }
    assert (
        dialogue.written(message)
        == 'Now.\n<tool_call>\n{"name": "echo", "arguments": {"text": "hi"}}\n</tool_call>'
    )
    result = Message(role="tool", content="hi", name="echo", tool_call_id="call00000")
    dialogue.add(message, EpisodeReply((result,), EpisodeStatus.ONGOING))
    said, answer = dialogue.messages[1:]
    assert [call["id"] for call in said["tool_calls"]] == ["c7"]
    assert answer == {"role": "tool", "name": "echo", "tool_call_id": "c7", "content": "hi"}


def test_arguments_that_are_no_json_reach_the_episode_as_a_malformed_call() -> None:
    dialogue = Dialogue(row([ECHO]), RULES, ToolCalls.NATIVE)
    text = dialogue.written(
        {"tool_calls": [{"id": "c", "function": {"name": "echo", "arguments": "{broken"}}]}
    )
    (call,) = SYNTAX[Dialect.HERMES].read(text, lambda: ())
    assert isinstance(call, MalformedCall)


def test_tools_in_text_are_written_by_xp_and_answered_as_user() -> None:
    dialogue = Dialogue(row([ECHO]), RULES, ToolCalls.TEXT)
    assert dialogue.schemas == []
    assert "<tools>" in dialogue.messages[0]["content"]
    dialogue.add(
        {"content": "<tool_call>...</tool_call>"},
        EpisodeReply((Message(role="tool", content="hi"),), EpisodeStatus.ONGOING),
    )
    assert [one["role"] for one in dialogue.messages[-2:]] == ["assistant", "user"]
