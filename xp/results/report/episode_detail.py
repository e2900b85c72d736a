"""Data of one episode for a page: messages, calls, results, rewards; all texts are escaped and cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xp.envs.pictures import text_of
from xp.episode.trajectory import own_turns
from xp.results.report.web import MAX_CHARACTERS, page_name, page_text

MOST_PICTURES: Final = 16
"""Pictures of a message that a page shows."""
MAX_INLINE: Final = 120
"""Largest number of characters of arguments on one line."""


Thumbnail = Callable[[str], str | None]
"""Returns a picture of a digest as a data URI."""


def detail(
    record: Mapping[str, Any],
    most: int | None = MAX_CHARACTERS,
    thumbnail: Thumbnail | None = None,
) -> dict[str, Any]:
    """The record for a page.

    Args:
        record: a line of a file of trajectories.
        most: largest number of characters of one message. None means all.
        thumbnail: makes a small picture. None means that pictures are shown in words.
    """
    messages = [_message(message, most, thumbnail) for message in record["messages"]]
    outcome = record["outcome"]
    rows = rows_of(record)
    undelivered = undelivered_turns(record)
    has_tree = len(rows) > 1 or bool(undelivered)
    row_of = {turn: number for number, row in enumerate(rows) for turn in row["turns"]}
    for turn, position in enumerate(own_turns(record["messages"], outcome["num_turns"])):
        messages[position]["turn"] = turn
        if has_tree:
            messages[position] |= {"row": row_of[turn], "is_untrained": turn in undelivered}
    void = outcome["void_reason"]
    return {
        "messages": messages,
        "calls": [_call_data(call, record["messages"], most) for call in record["tool_calls"]],
        "rows": rows,
        "step_rewards": outcome["step_rewards"],
        "reward_steps": [
            [page_name(step), reward] for step, reward in outcome["reward_steps"].items()
        ],
        "void_reason": None if void is None else page_text(void, most),
        "metrics": {page_name(name): value for name, value in outcome["metrics"].items()},
        **{name: record[name] for name in ("env_s", "open_s", "started_at")},
        "tokens": record["tokens"] or {},
        "extra": _json_text(record["extra"], most) if record["extra"] else "",
    }


def undelivered_turns(record: Mapping[str, Any]) -> set[int]:
    """Turns for which the episode's program did not wait, and which are not trained on."""
    turns = set[int]()
    for call in record["tool_calls"]:
        turns |= set((call.get("result") or {}).get("undelivered", ()))
    return turns


def rows_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of tokens of an episode, several if its program rewrote its history.

    Returns:
        Each row's turns, and the turn that it `follows` (-1 is a new prompt).
    """
    follows = dict[int, int]()
    for call in record["tool_calls"]:
        result = call.get("result") or {}
        if result.get("follows") is not None:
            follows[call["turn"] + 1] = result["follows"]
    rows: list[dict[str, Any]] = []
    for turn in range(record["outcome"]["num_turns"]):
        before = follows.get(turn, turn - 1)
        row = next((row for row in rows if row["turns"][-1] == before), None)
        if row is None:
            row = {"follows": before, "turns": []}
            rows.append(row)
        row["turns"].append(turn)
    return rows


def said_in(record: Mapping[str, Any]) -> str:
    """Text of all messages of an episode, for a search."""
    texts = [str(message["content"]) for message in record["messages"]]
    return "\n".join([*texts, record["outcome"]["void_reason"] or ""])


def _message(
    message: Mapping[str, Any], most: int | None, thumbnail: Thumbnail | None
) -> dict[str, Any]:
    pictures = message.get("pictures", ())
    content = text_of(message) if pictures else message["content"]
    parts = [content if isinstance(content, str) else json.dumps(content)]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(
            f"call {function['name']} {json.dumps(function['arguments'], ensure_ascii=False)}"
        )
    text = "\n".join(filter(None, parts))
    left_out = 0 if most is None else max(0, len(text) - most)
    more: dict[str, Any] = {"left_out": left_out} if left_out else {}
    if thumbnail is not None:
        shown = [thumbnail(picture["sha256"]) for picture in pictures[:MOST_PICTURES]]
        shown = [uri for uri in shown if uri is not None]
        if shown:
            more["pictures"] = shown
    return {"role": page_name(message["role"]), "content": page_text(text, most), **more}


def _call_data(
    call: Mapping[str, Any], messages: Sequence[Any], most: int | None
) -> dict[str, Any]:
    call_data: dict[str, Any] = {"turn": call.get("turn"), "message": call.get("message")}
    if "malformed" in call:
        call_data["malformed"] = page_text(str(call["malformed"]), most)
    elif call.get("answer"):
        call_data["answer"] = True
    else:
        call_data |= {
            "name": page_name(call.get("name", "")),
            "arguments": _json_text(call.get("arguments"), most),
        }
    result = call.get("result")
    if result is not None:
        flags = {name: True for name in ("finished", "is_call_error") if result.get(name) is True}
        call_data["result"] = {"reward": result["reward"], **flags}
        position = call.get("message")
        if position is None or messages[position]["content"] != result["text"]:
            call_data["result"]["text"] = page_text(result["text"], most)
    return call_data


def _json_text(value: Any, most: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return page_text(
        text if len(text) <= MAX_INLINE else json.dumps(value, ensure_ascii=False, indent=1), most
    )
