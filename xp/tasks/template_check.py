"""Checks that the model's chat template renders tools, system messages and results, with a probe dialogue.

It is also a program for the trainer's Python that prints a TemplateReport as JSON.

Usage: python -m xp.tasks.template_check MODEL_DIR [TASK_SET] < MODEL_AS_JSON
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message, ToolSpec
from xp.envs.messages import call_id
from xp.episode.auto_dialect import detect
from xp.episode.json_schema import properties
from xp.episode.prompt import tool_schemas
from xp.episode.tokens import ChatTokens, TemplateFault
from xp.errors import ExitCode, XpError
from xp.lib.codec import decode
from xp.lib.models.clock import CLOCK
from xp.spec.dialect import Dialect, ToolsPrompt
from xp.spec.model import Model

_ROOM: Final = {"which_room": {"type": "string", "description": "Its name."}}
PROBE_TOOLS: Final = tool_schemas(
    (
        ToolSpec(
            "look_around",
            "Look at a room.",
            {"type": "object", "properties": _ROOM, "required": [*_ROOM]},
        ),
        ToolSpec("list_rooms", "List the rooms.", {"type": "object", "properties": {}}),
    )
)
"""Tools of the probe if the environment's are not known yet; one tool has no arguments."""
MAX_TOOL_SETS: Final = 64
"""Largest number of different sets of tools, and of different sequences of earlier calls, that are checked."""
_SYSTEM = Message(role="system", content="Be brief, says xp.")
_QUESTION = Message(role="user", content="Where is the key?")
_THOUGHT = "The hall first, thinks xp."
_CALL = '<tool_call>\n{"name": "look_around", "arguments": {"which_room": "hall"}}\n</tool_call>'
_TURN = f"<think>\n{_THOUGHT}\n</think>\n\n{_CALL}"
_NUDGE = Message(role="user", content="Go on, says xp.")
_RESULTS = ("A table, and a key on it, says xp.", "The hall and the attic, says xp.")
_RAISED: Final = "xp: no prompt: "


@dataclass(frozen=True)
class TemplateReport:
    """Properties of a chat template's rendering of a dialogue with tools."""

    faults: tuple[str, ...]
    """Reasons why no episode can be played with it, each with a remedy."""
    only_appends: bool = False
    """True if the rendering of a longer dialogue begins with that of a shorter one."""
    keeps_thoughts: bool = False
    """True if the thinking of earlier turns is rendered. In either case the policy gets its own turns unchanged."""
    keeps_calls: bool = False
    """True if tool calls in the text of earlier turns are rendered. In either case the policy gets its own turns
    unchanged."""

    def on_record(self) -> str:
        """One line about the rendering, for the stage's log and the doctor."""
        parts = (("thinking", self.keeps_thoughts), ("tool calls", self.keeps_calls))
        cut = " and ".join(name for name, is_kept in parts if not is_kept)
        if not cut and self.only_appends:
            return "the template keeps earlier turns as they were written"
        what = f"cuts {cut} of" if cut else "rewrites"
        return f"the template {what} earlier turns; episodes keep every turn as it was written"


def check_chat(chat: ChatTokens, prompts: Iterable[tuple[Sequence[Message], str]]) -> None:
    """Refuses a model whose template omits tools, system messages or results; else prints the template's properties.

    Args:
        chat: the policy's tokenizer.
        prompts: first messages and tools (a JSON list) of the tasks.

    Raises:
        XpError: (PLAN) with all faults and remedies.
    """
    prompts = list(prompts)
    report = examine_prompts(chat, prompts)
    if report.faults:
        raise XpError("\n".join(report.faults), ExitCode.PLAN)
    if chat.tools_prompt is ToolsPrompt.SYSTEM:
        who = "xp, in the system message"
    else:
        who = "the chat template"
    if any(json.loads(tools) for _, tools in prompts):
        tools = f"tools are described by {who}; "
    else:
        tools = ""
    _print_once(f"{tools}{report.on_record()}")


@cache
def _print_once(line: str) -> None:
    """Prints a line, once for the training and the held-out tasks of a process."""
    print(line, flush=True)


def examine_prompts(
    chat: ChatTokens, prompts: Iterable[tuple[Sequence[Message], str]]
) -> TemplateReport:
    """Runs `examine` for each different set of tools among the prompts (the first `MAX_TOOL_SETS`).

    Of prompts with earlier calls, one of each sequence of roles and numbers of calls is examined too.
    """
    kinds: dict[str, bool] = {}
    lost: dict[tuple[tuple[str, int], ...], str] = {}
    for messages, tools in prompts:
        if tools in kinds or len(kinds) < MAX_TOOL_SETS:
            kinds[tools] = kinds.get(tools, False) or any(
                message["role"] == "system" for message in messages
            )
        shape = tuple((message["role"], len(message.get("tool_calls", ()))) for message in messages)
        if any(count for _, count in shape) and shape not in lost and len(lost) < MAX_TOOL_SETS:
            lost[shape] = _lost_calls(chat, messages, tools)
    reports = [
        examine(chat, json.loads(tools), has_system=has_system)
        for tools, has_system in kinds.items()
    ]
    faults = dict.fromkeys(fault for report in reports for fault in report.faults)
    faults |= dict.fromkeys(filter(None, lost.values()))
    return replace(reports[0], faults=tuple(faults))


def _lost_calls(chat: ChatTokens, messages: Sequence[Message], tools: str) -> str:
    """The fault of a template that does not render each earlier call of a prompt; empty if it does.

    Calls get names of their own, since the template may describe the tools as well.
    """
    marked = [copy.deepcopy(message) for message in messages]
    calls = [call["function"] for message in marked for call in message.get("tool_calls", ())]
    for number, function in enumerate(calls):
        function["name"] = f"xp_call_{number}_"
    text = _try(chat, marked, json.loads(tools))
    if text.startswith(_RAISED) or any(function["name"] not in text for function in calls):
        return f"the chat template does not render the earlier tool calls of a prompt{_reason(text)}; {_fix(chat)}"
    return ""


def examine(
    chat: ChatTokens, tools: Sequence[Mapping[str, Any]] = PROBE_TOOLS, *, has_system: bool = True
) -> TemplateReport:
    """Renders a probe with these tools, and reports the template's properties.

    Args:
        chat: the policy's tokenizer.
        tools: function schemas.
        has_system: whether the environment's prompts have a system message.
    """
    bare = _try(chat, [_QUESTION], [])
    if _QUESTION["content"] not in bare:
        fault = f"the chat template does not render a message of plain text{_reason(bare)}"
        return TemplateReport(
            (f"{fault}; {_other(chat, 'choose a model whose messages are texts')}",)
        )
    faults = [
        f"the chat template does not read {name}; set model.chat_template.{name}=null"
        for name in chat.arguments
        if name != CLOCK and not chat.reads(name)
    ]
    if chat.dialect is Dialect.AUTO:
        try:
            detect(chat.tokenizer, chat.arguments)
        except XpError as error:
            faults.append(str(error))
    faults += _prompt_faults(chat, tools, has_system=has_system)
    if faults:
        return TemplateReport(tuple(faults))
    return _over_turns(chat, tools, has_system=has_system)


def _prompt_faults(
    chat: ChatTokens, tools: Sequence[Mapping[str, Any]], *, has_system: bool
) -> Iterator[str]:
    if has_system:
        opening = [_SYSTEM, _QUESTION]
    else:
        opening = [_QUESTION]
    is_ours = chat.tools_prompt is ToolsPrompt.SYSTEM
    takes_system = True
    if has_system or (is_ours and tools):
        text = _try(chat, [_SYSTEM, _QUESTION], [])
        takes_system = _SYSTEM["content"] in text
        if not takes_system:
            other = _other(chat)
            fix = f"set env.system_prompt=null, where it is not the environment's own, or {other}"
            if is_ours:
                fix = f"model.tools_prompt=system needs one: {other}"
            yield f"the chat template supports no system message{_reason(text)}; {fix}"
    if not tools or not takes_system:
        return
    bare = _try(chat, opening, [])
    with_tools = _try(chat, opening, tools)
    lost = [name for name in _names(tools) if _count(with_tools, name) <= _count(bare, name)]
    if lost:
        yield f"the chat template does not tell the model of {', '.join(lost)}{_reason(with_tools)}; {_fix(chat)}"


def _over_turns(
    chat: ChatTokens, tools: Sequence[Mapping[str, Any]], *, has_system: bool
) -> TemplateReport:
    if has_system:
        opening = [_SYSTEM, _QUESTION]
    else:
        opening = [_QUESTION]
    names = [tool["function"]["name"] for tool in (*tools[:1], *tools[-1:])]
    results = [
        Message(role="tool", content=text, name=name, tool_call_id=call_id(number))
        for number, (text, name) in enumerate(zip(_RESULTS, names, strict=False))
    ]
    for reply in ([_NUDGE], results[:1], results) if tools else ([_NUDGE],):
        reason = _reply_fault(chat, reply)
        if reason is not None:
            what = "what a tool answers"
            fix = _fix(chat)
            if reply == [_NUDGE]:
                what = "a message after an assistant's turn"
                fix = _other(chat)
            return TemplateReport((f"the chat template does not render {what}{reason}; {fix}",))
    before = _try(chat, opening, tools)
    turn = Message(role="assistant", content=_TURN)
    # Qwen3's template removes thinking before a user's message, but keeps it before a tool's result.
    replies = [results[:1], [_NUDGE]] if tools else [[_NUDGE]]
    wholes = [_try(chat, [*opening, turn, *chat.env_messages(reply)], tools) for reply in replies]
    parts = [before + _TURN + chat.rendered_reply(reply) for reply in replies]
    keeps_thoughts, keeps_calls = (
        all(text in whole for whole in wholes) for text in (_THOUGHT, _CALL)
    )
    return TemplateReport((), wholes == parts, keeps_thoughts, keeps_calls)


def _reply_fault(chat: ChatTokens, reply: Sequence[Message]) -> str | None:
    """The reason why a reply is not rendered after a cut turn, or after one that ended with one of the tokens.

    None: it is rendered.
    """
    try:
        for last_id in (None, *chat.end_ids):
            chat.reply(reply, last_id=last_id)
        text = chat.rendered_reply(reply)
    except TemplateFault as fault:
        return f" ({fault.reason})"
    if all(message["content"] in text for message in reply):
        return None
    return ""


def _other(chat: ChatTokens, fix: str = "choose another model") -> str:
    """The remedy for a template that cannot be used: `fix` for a model's own, a correction of the file for the user's."""
    if chat.template is not None:
        return "correct the file of model.template and set it again, or set it to null"
    return fix


def _fix(chat: ChatTokens) -> str:
    if chat.tools_prompt is ToolsPrompt.SYSTEM:
        return _other(chat)
    return "set model.tools_prompt=system, and xp writes the tools into the system message"


def _try(chat: ChatTokens, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> str:
    """The rendered prompt, or the reason why there is none."""
    try:
        return chat.rendered(messages, json.dumps(tools))
    except TemplateFault as fault:
        return f"{_RAISED}{fault.reason}"


def _reason(text: str) -> str:
    if text.startswith(_RAISED):
        return f" ({text.removeprefix(_RAISED)})"
    return ""


def _names(tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the tools and of their parameters."""
    for tool in tools:
        function = tool["function"]
        yield function["name"]
        yield from properties(function.get("parameters") or {})


def _count(text: str, name: str) -> int:
    spellings = {name, json.dumps(name)[1:-1]}
    return sum(text.count(spelling) for spelling in spellings)


def main(arguments: list[str]) -> int:
    # A tokenizer needs no torch, whose import takes half of the time.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments[0], local_files_only=True)
    chat = ChatTokens(tokenizer, decode(Model, sys.stdin.read()))
    report = examine(chat)
    for task_set in arguments[1:]:
        from xp.tasks.row import read_rows

        rows = read_rows(Path(task_set, "tasks.parquet"))
        report = examine_prompts(chat, ((row.messages, row.tools) for row in rows))
    print(json.dumps({**asdict(report), "line": report.on_record()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
