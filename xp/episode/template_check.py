"""Runs in the trainer's Python: plays a turn through a model's chat template and looks at what the next one would read.

Usage: python -m xp.episode.template_check MODEL_DIR TEMPLATE_ARGUMENTS_AS_JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any

from xp.envs.base import Message
from xp.episode.tokens import ChatTokens

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a room.",
            "parameters": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]},
        },
    }
]
OPENING = [Message(role="system", content="Be brief."), Message(role="user", content="Where is the key?")]
TURN = (
    '<think>\nThe hall first.\n</think>\n\n<tool_call>\n{"name": "look", "arguments": {"room": "hall"}}\n</tool_call>'
)
REPLY = Message(role="tool", content="A table, and a key on it.")


def examine(tokenizer: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """`only_appends`: the template renders the longer dialogue as the shorter one and more; `fault`: why it cannot."""
    tokens = ChatTokens(tokenizer, arguments)
    prompt = tokens.prompt(OPENING, json.dumps(TOOLS))
    try:
        after = tokens.reply([REPLY], is_cut=False)
    except ValueError as error:
        return {"fault": str(error), "only_appends": False}
    written = tokenizer(TURN, add_special_tokens=False)["input_ids"]
    played = [*prompt, *written, tokens.end_id, *after]
    dialogue = [*OPENING, Message(role="assistant", content=TURN), REPLY]
    rendered = tokens.prompt(dialogue, json.dumps(TOOLS))
    return {"fault": "", "only_appends": rendered == played}


def main(arguments: list[str]) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments[0], local_files_only=True)
    print(json.dumps(examine(tokenizer, json.loads(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
