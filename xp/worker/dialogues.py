"""Dialogues as people store them: OpenAI's messages, ShareGPT, Alpaca, and TRL's prompt and completion.

All that a row says is in the messages, or the row is refused with the name of its key. No text and no switch of the
loss is dropped silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from xp.envs.base import EnvFault
from xp.envs.messages import ReadPicture, chat_messages, role_of
from xp.envs.rows import with_column
from xp.episode.prompt import prompt_keys
from xp.errors import XpError
from xp.lib.data_files import (
    check_is_text,
    is_set,
    named_columns,
    path_of,
    rows_of_file,
    rows_of_hub,
)
from xp.worker.demonstrations import Demonstration, specs_of

REASONING: Final = ("reasoning_content", "reasoning", "reasoning_details", "thinking")
"""Keys of messages in which APIs and data sets have thinking."""
SWITCHES: Final = (
    "weight",
    "loss_weight",
    "loss_scale",
    "train",
    "training",
    "trainable",
    "loss",
    "masked",
)
"""Keys of a message by which other tools include it in the loss; `masked` excludes it."""
ROW_SWITCHES: Final = ("weight", "loss_weight")
READ: Final = (
    "role",
    "content",
    "from",
    "value",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
)
NOTES: Final = (
    "id",
    "index",
    "model",
    "timestamp",
    "created_at",
    "metadata",
    "usage",
    "finish_reason",
)
"""Keys of a message that no tool shows to a model."""
UNREAD: Final = ("chosen", "rejected", "documents", "chat_template_kwargs", *REASONING)
"""Columns that other tools show to the model or train on, and xp does not."""


def of_messages(
    source: str, *, thinking: bool = False, read: ReadPicture | None = None
) -> Iterator[Demonstration]:
    """Dialogues of the rows of a file or a data set.

    Args:
        source: a path, or a name of xp.lib.data_files; of a data set, the split `train` or the only one.
        thinking: whether thinking is trained on, so that none beside `content` may be lost.
        read: reads a picture of a row. None means that rows with pictures are refused.

    Raises:
        XpError: it cannot be read, or a row says something that is not read; with the row and the key.
    """
    if is_set(source):
        splits = rows_of_hub(source)
        split = next(iter(splits)) if len(splits) == 1 else "train"
        if split not in splits:
            raise XpError(
                f"{source} has no split train, but {', '.join(splits)}; give a file of the one to train on"
            )
        rows = splits[split]
    else:
        rows = rows_of_file(path_of(source) or Path(source))
    for number, row in enumerate(rows, start=1):
        try:
            yield _demonstration(row, read, thinking=thinking)
        except (EnvFault, TypeError, ValueError) as error:
            raise XpError(f"{source}: row {number}: {error}") from error


def _demonstration(
    row: Mapping[str, Any], read: ReadPicture | None, *, thinking: bool
) -> Demonstration:
    """The dialogue of a row; raises ValueError, TypeError, or EnvFault by the row's fault."""
    given = _given(row)
    unread = next((key for key in UNREAD if row.get(key)), None)
    if unread:
        raise ValueError(
            f"the column `{unread}` is not read; write its text into the messages, or drop it"
        )
    if read is None:
        messages = chat_messages(given)
    else:
        messages = with_column(given, row, read)
    texts = [message["content"] for message in messages]
    check_is_text(row, texts, has_pictures=read is not None)
    tools = row.get("tools") or row.get("functions") or "[]"
    if not isinstance(tools, str):
        tools = json.dumps(tools)
    try:
        specs_of(tools)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ValueError(
            f"expected `tools` as a list of JSON Schemas in OpenAI's form; got {tools:.80}"
        ) from None
    mask = row.get("loss_mask")
    if mask is None:
        mask = [None] * len(messages)
    if not isinstance(mask, list) or len(mask) != len(messages):
        raise ValueError(
            f"`loss_mask` must have a 0 or 1 for each of the {len(messages)} messages; got {mask!r:.80}"
        )
    is_trained = _is_on(row, ROW_SWITCHES, default=True)
    trained = set()
    turns = {}
    call_ids = set[str]()
    for at, (message, source, value) in enumerate(zip(messages, given, mask, strict=True)):
        is_turn = message["role"] == "assistant"
        try:
            _check_keys(source, thinking=thinking)
            is_on = _is_on(
                {**source, "loss_mask": value}, (*SWITCHES, "loss_mask"), default=is_turn
            )
        except ValueError as fault:
            raise ValueError(f"message {at}: {fault}") from None
        if is_on and not is_turn:
            raise ValueError(
                f"message {at}: role {message['role']} cannot be trained on; drop its switch"
            )
        if is_turn and message.get("pictures"):
            raise ValueError(f"message {at}: the assistant's message has an image; leave it out")
        if is_turn:
            calls = message.get("tool_calls", ())
            turns[at] = [
                (call["function"]["name"], call["function"]["arguments"]) for call in calls
            ]
            call_ids = {call["id"] for call in calls}
            if is_on and is_trained:
                trained.add(at)
        elif message["role"] == "tool" and message.get("tool_call_id") not in call_ids:
            raise ValueError(f"message {at}: a tool's result answers no call of the turn before it")
    if not turns:
        raise ValueError("no message of the role assistant, so there is nothing to learn")
    question, _ = prompt_keys(messages[: min(turns)])
    return Demonstration(
        question, "", math.inf, messages[: max(turns) + 1], turns, tools, frozenset(turns) - trained
    )


def _given(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages of a row in the form of chat completions, before they are checked."""
    columns = ("messages", "conversations", "conversation")
    given = next((row[key] for key in columns if row.get(key) is not None), None)
    if given is not None:
        if not isinstance(given, list):
            raise TypeError(f"expected a list of {{role, content}}, got {given!r:.80}")
        messages = [_of_sharegpt(message) for message in given]
    elif row.get("instruction") and row.get("output"):
        text = "\n".join(filter(None, (row["instruction"], row.get("input"))))
        pairs = [*(row.get("history") or ()), (text, row["output"])]
        messages = [
            {"role": role, "content": content}
            for pair in pairs
            for role, content in zip(("user", "assistant"), pair, strict=True)
        ]
    elif row.get("prompt") and row.get("completion"):
        before = [
            {**message, "train": False} if role_of(message) == "assistant" else message
            for message in _as_messages(row["prompt"], "user")
        ]
        messages = [*before, *_as_messages(row["completion"], "assistant")]
    else:
        raise ValueError(
            "expected the columns `messages` (OpenAI), `conversations` (ShareGPT), `instruction` and `output` (Alpaca),"
            f" or `prompt` and `completion`; got {named_columns([row]) or 'none'}"
        )
    system = row.get("system")
    if system:
        if messages and role_of(messages[0]) == "system":
            raise ValueError("there is a column `system` and a system message; keep one of them")
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _as_messages(value: Any, role: str) -> list[Mapping[str, Any]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return list(value)


def _of_sharegpt(turn: Any) -> Mapping[str, Any]:
    """A message with `from` and `value` as one with role and content."""
    if not isinstance(turn, Mapping) or "from" not in turn:
        return turn  # chat_messages refuses what is no message
    message = {"role": turn["from"], "content": turn.get("value"), **turn}
    if turn["from"] == "function_call":
        calls = json.loads(turn.get("value") or "null")
        message |= {
            "role": "assistant",
            "content": "",
            "tool_calls": calls if isinstance(calls, list) else [calls],
        }
    return message


def _check_keys(message: Mapping[str, Any], *, thinking: bool) -> None:
    for key, value in message.items():
        if key in REASONING and value and thinking:
            raise ValueError(
                f"`{key}` is not read: write it into `content`, between the model's tags (<think>...</think>), or set"
                " sft.thinking=cut"
            )
        if value and key not in (*READ, *SWITCHES, *NOTES, *REASONING):
            raise ValueError(
                f"the key `{key}` is not read; write its text into `content`, or drop it"
            )


def _is_on(holder: Mapping[str, Any], keys: tuple[str, ...], *, default: bool) -> bool:
    """Returns whether a message or a row is in the loss; raises ValueError for a switch that is neither on nor off."""
    fields = {key: holder[key] for key in keys if holder.get(key) is not None}
    for key, value in fields.items():
        if value not in (0, 1):
            raise ValueError(
                f"`{key}` is {value!r:.40}; expected true or false, 1 or 0: a loss has no other weights"
            )
    if fields:
        return all(bool(value) != (key == "masked") for key, value in fields.items())
    return default
