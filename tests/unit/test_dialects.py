"""Dialects: what a model's real chat template writes is read back, and nothing that a model writes raises."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.calls_of_texts import LOOK, read
from tests.support.chat_templates import tokenizer_of
from tests.support.fake_session import RULES
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from xp.envs.base import Message, ToolSpec
from xp.envs.config import EpisodeConfig
from xp.episode.auto_dialect import detect, resolve, resolved
from xp.episode.dialects import SYNTAX
from xp.episode.prompt import tool_schema
from xp.episode.tokens import ChatTokens
from xp.episode.tool_calls import ToolCall
from xp.errors import XpError
from xp.spec.dialect import Dialect

GO = ToolSpec("go", "Go.", {})
ARGUMENTS: dict[str, Any] = {
    "text": 'döor\n<b>"2" & {x}',
    "count": 3,
    "share": 2.5,
    "is_on": True,
    "names": ["a", 1],
    "options": {"k": [None, False]},
    "maybe": None,
}
TEMPLATES = {
    "qwen2_5": Dialect.HERMES,
    "qwen3": Dialect.HERMES,
    "qwen3_5_think": Dialect.QWEN_XML,
    "qwen3_6": Dialect.QWEN_XML,
    "nemotron_3_nano": Dialect.QWEN_XML,
    "llama3_1": Dialect.LLAMA_JSON,
    "llama3_2": Dialect.LLAMA_JSON,
    "lfm2_2_5": Dialect.PYTHONIC,
    "glm4moe": Dialect.GLM,
    "gptoss": Dialect.HARMONY,
    "gemma4": Dialect.GEMMA,
    "gemma4_v5": Dialect.GEMMA,
}
"""Templates as models ship them, which TRL carries."""
SPECIAL = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|user|>",
    "<|observation|>",
    "<|start|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)


def tokenizer_with(template: str) -> Any:
    """The tiny model's, with a template of a real model's and the tokens that it has."""
    import trl

    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [*SPECIAL]}, replace_extra_special_tokens=False
    )
    tokenizer.bos_token = tokenizer.pad_token
    tokenizer.chat_template = (
        Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
    ).read_text()
    return tokenizer


def rendered_turn(tokenizer: Any, arguments: dict[str, Any]) -> str:
    """The assistant's turn in the template's own words."""
    asked = {"role": "user", "content": "Where?"}
    function = {"name": "look", "arguments": arguments}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function}],
    }
    options = {"tools": [tool_schema(LOOK)], "tokenize": False}
    before = tokenizer.apply_chat_template([asked], **options)
    after = tokenizer.apply_chat_template([asked, called], **options)
    assert after.startswith(before)
    return str(after[len(before) :])


@pytest.mark.parametrize(("template", "dialect"), TEMPLATES.items())
def test_a_call_in_a_models_own_words_is_read_back(template: str, dialect: Dialect) -> None:
    # LFM2's template puts a text between quotes as it is.
    arguments = ARGUMENTS | {"text": "plain"} if dialect is Dialect.PYTHONIC else ARGUMENTS
    tokenizer = tokenizer_with(template)
    assert detect(tokenizer, {}) is dialect
    assert read(dialect, rendered_turn(tokenizer, arguments)) == (ToolCall("look", arguments),)
    assert read(dialect, rendered_turn(tokenizer, {})) == (ToolCall("look", {}),)


@pytest.mark.parametrize("template", ["llama3", "cohere"])
def test_a_template_that_writes_no_call_is_refused_with_the_dialects(template: str) -> None:
    with pytest.raises(XpError, match=r"model\.dialect=auto") as caught:
        detect(tokenizer_with(template), {})
    assert all(dialect.value in str(caught.value) for dialect in SYNTAX)


@pytest.mark.parametrize("dialect", list(SYNTAX))
@pytest.mark.parametrize("arguments", [ARGUMENTS, {}])
def test_what_is_written_is_read_back_in_every_dialect(
    dialect: Dialect, arguments: dict[str, Any]
) -> None:
    text = SYNTAX[dialect].write("look", arguments)
    assert read(dialect, text) == (ToolCall("look", arguments),)


@pytest.mark.parametrize(
    "dialect", [dialect for dialect in SYNTAX if dialect is not Dialect.ACTION]
)
def test_several_calls_of_a_turn_are_read_back(dialect: Dialect) -> None:
    calls = [
        ("look", {"text": "a, b"}),
        ("look", {"count": 2}),
        ("go", {}),
    ]
    text = SYNTAX[dialect].joined(
        [SYNTAX[dialect].write(name, arguments) for name, arguments in calls]
    )
    assert read(dialect, text, (LOOK, GO)) == tuple(ToolCall(*call) for call in calls)


def test_several_calls_are_one_list_where_the_engines_read_one() -> None:
    def written(dialect: Dialect) -> str:
        return SYNTAX[dialect].joined(
            [SYNTAX[dialect].write("look", {}), SYNTAX[dialect].write("go", {})]
        )

    assert written(Dialect.PYTHONIC) == "[look(), go()]"
    assert written(Dialect.COHERE).count("<|START_ACTION|>") == 1


KIMI_BY_ID = (
    "{% for m in messages %}<|im_{{ m.role }}|>{{ m.content }}{% for call in m.tool_calls or [] %}<|tool_call_begin|>"
    "{{ call.id }}<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|im_end|>{% endfor %}"
)
TEXT_ALONE = (
    KIMI_BY_ID.replace("call.id", "call.function.name")
    .replace(" | tojson", "")
    .replace("<|tool_call_argument_begin|>{{", "<｜tool▁sep｜>{{ '' +")
    .replace("<|tool_call_begin|>", "<｜tool▁call▁begin｜>")
    .replace("<|tool_call_end|>", "<｜tool▁call▁end｜>")
)


@pytest.mark.parametrize(
    ("template", "dialect"), [(KIMI_BY_ID, Dialect.KIMI), (TEXT_ALONE, Dialect.DEEPSEEK)]
)
def test_a_template_that_writes_ids_or_takes_arguments_as_text_is_found(
    template: str, dialect: Dialect
) -> None:
    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = template
    assert detect(tokenizer, {}) is dialect


def test_an_answer_is_without_its_thinking_and_tags() -> None:
    answer = "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Ada.<|END_RESPONSE|>"
    assert SYNTAX[Dialect.COHERE].plain(answer) == "Ada."
    assert SYNTAX[Dialect.GEMMA].plain("<|channel>thought\nhm<channel|>Ada.") == "Ada."
    assert SYNTAX[Dialect.MISTRAL].plain("[THINK]hm[/THINK]Ada.") == "Ada."


@pytest.mark.parametrize("dialect", list(SYNTAX))
def test_a_turn_without_a_call_has_none(dialect: Dialect) -> None:
    assert read(dialect, "It was Ada, in the hall [1], with {nothing}.") == ()


def test_gpt_oss_answers_on_a_channel() -> None:
    thought = "<|channel|>analysis<|message|>to=functions.no {}<|end|>"
    answer = f"{thought}<|start|>assistant<|channel|>final<|message|>Ada.<|return|>"
    assert SYNTAX[Dialect.HARMONY].plain(answer) == "Ada."
    assert SYNTAX[Dialect.HARMONY].plain("Ada.") == "Ada."


@pytest.mark.parametrize(
    ("dialect", "text", "is_before_call", "written"),
    [
        (Dialect.HERMES, "Ada.", False, "Ada."),
        (Dialect.HERMES, "I look.", True, "I look.\n"),
        (
            Dialect.HARMONY,
            "I look.",
            True,
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant",
        ),
        (
            Dialect.HARMONY,
            "<|channel|>analysis<|message|>A",
            True,
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant",
        ),
    ],
)
def test_a_text_is_written_in_the_dialects_words(
    dialect: Dialect, text: str, is_before_call: bool, written: str
) -> None:
    assert SYNTAX[dialect].prose(text, is_before_call) == written


@pytest.mark.parametrize(
    ("template", "ends", "opening"),
    [
        
        ("llama3_1", ["<|eot_id|>", "<|eom_id|>"], "<|start_header_id|>ipython<|end_header_id|>\n\n\"found it\""),
        ("glm4moe", ["<|user|>", "<|observation|>"], "<|observation|>\n<tool_response>\nfound it"),
        ("gptoss", ["<|return|>", "<|call|>"], "<|start|>functions.look to=assistant<|channel|>commentary"),
    ],
)  # fmt: skip
def test_a_turn_ends_where_the_models_template_ends_it(
    template: str, ends: list[str], opening: str, tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(template, tmp_path)
    chat = ChatTokens(tokenizer)
    assert set(tokenizer.convert_tokens_to_ids(ends)) <= set(chat.end_ids)
    assert "<|end|>" not in chat.ends.texts
    message = [Message(role="tool", content="found it")]
    for end in ends:
        last_id = tokenizer.convert_tokens_to_ids(end)
        assert chat.text([*tokenizer("hi", add_special_tokens=False)["input_ids"], last_id]) == "hi"
        text = tokenizer.decode(chat.reply(message, last_id=last_id, tools=["look"]))
        assert text.startswith(opening.removeprefix(end))


@pytest.mark.parametrize("template", ["glm4moe", "gptoss"])
def test_a_cut_turn_is_ended_in_the_templates_way(template: str) -> None:
    tokenizer = tokenizer_with(template)
    chat = ChatTokens(tokenizer)
    reply = chat.reply(
        [Message(role="tool", content="found it")],
        last_id=None,
        tools=["look"],
    )
    assert tokenizer.decode(reply[:1]) in ("<|observation|>", "<|call|>")
    assert "found it" in tokenizer.decode(reply)


def test_auto_is_resolved_once_and_stands_in_the_stage(tmp_path: Path) -> None:
    rules = replace(RULES, dialect=Dialect.AUTO)
    (tmp_path / "episode.json").write_text(EpisodeConfig({"one": rules}).to_json())
    config = EpisodeConfig.from_json((tmp_path / "episode.json").read_text())
    with pytest.raises(XpError, match=r"dialect\.json"):
        resolved(config, tmp_path)
    resolve(tmp_path, ChatTokens(tokenizer_with("glm4moe")))
    assert json.loads((tmp_path / "dialect.json").read_text())["dialect"] == "glm"
    assert resolved(config, tmp_path).members["one"].dialect is Dialect.GLM
