"""An agent that shows its model pictures, on the vendors' own clients: `picture_agent.py PROMPT_FILE WIRE [FIRST]`.

The first message has a picture, or FIRST in its place. The model's calls of `look` say what a tool's result shows: a
color of a picture, or the address in place of one.
"""

import base64
import json
import struct
import sys
import zlib
from pathlib import Path

SIDE = 56
COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}
ABOUT = {"name": "look", "description": "Show a picture."}


def png(color):
    """A picture of one color."""
    row = b"\0" + bytes(color) * SIDE
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * SIDE)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def address(at):
    """A data URI of a color's picture; any other text is itself."""
    if at not in COLORS:
        return at
    return "data:image/png;base64," + base64.b64encode(png(COLORS[at])).decode()


def chat_part(at):
    return {"type": "image_url", "image_url": {"url": address(at)}}


def responses_part(at):
    return {"type": "input_image", "image_url": address(at), "detail": "auto"}


def anthropic_part(at):
    url = address(at)
    if at not in COLORS:
        return {"type": "image", "source": {"type": "url", "url": url}}
    data = url.partition(",")[2]
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def chat(client, messages):
    tools = [{"type": "function", "function": {**ABOUT, "parameters": SCHEMA}}]
    done = client.chat.completions.create(model="policy", messages=messages, tools=tools)
    message = done.choices[0].message
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": [
                {"type": "text", "text": "Here:"},
                chat_part(json.loads(call.function.arguments)["at"]),
            ],
        }
        for call in message.tool_calls or ()
    ]
    return [message.model_dump(exclude_none=True)], results


def responses(client, items):
    tools = [{"type": "function", **ABOUT, "parameters": SCHEMA, "strict": False}]
    done = client.responses.create(model="policy", input=items, store=False, tools=tools)
    results = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": [
                {"type": "input_text", "text": "Here:"},
                responses_part(json.loads(call.arguments)["at"]),
            ],
        }
        for call in done.output
        if call.type == "function_call"
    ]
    return [item.model_dump(exclude_none=True) for item in done.output], results


def anthropic(client, messages):
    tools = [{**ABOUT, "input_schema": SCHEMA}]
    done = client.messages.create(model="policy", max_tokens=100, tools=tools, messages=messages)
    results = [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": [{"type": "text", "text": "Here:"}, anthropic_part(block.input["at"])],
        }
        for block in done.content
        if block.type == "tool_use"
    ]
    content = [block.model_dump(exclude_none=True) for block in done.content]
    answer = [{"role": "assistant", "content": content}]
    return answer, [{"role": "user", "content": results}] if results else []


def main(prompt_file, wire, first="red"):
    if wire == "anthropic":
        from anthropic import Anthropic as Client
    else:
        from openai import OpenAI as Client
    ask = {"chat": chat, "responses": responses, "anthropic": anthropic}[wire]
    part = {"chat": chat_part, "responses": responses_part, "anthropic": anthropic_part}[wire]
    text = {"type": "input_text" if wire == "responses" else "text"}
    text["text"] = Path(prompt_file).read_text()
    messages = []
    results = [{"role": "user", "content": [text, part(first)]}]
    while results:
        messages += results
        answer, results = ask(Client(max_retries=0), messages)
        messages += answer


if __name__ == "__main__":
    main(*sys.argv[1:])
