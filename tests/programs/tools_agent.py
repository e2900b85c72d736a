"""An agent that offers the tools of the task's own server (the Model Context Protocol over HTTP) to its model."""

import json
import os
import sys
from pathlib import Path

from shell_agent import ask, post

URL = os.environ["XP_TOOLS_URL"]


def tool(method, **params):
    return post(URL, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]


def content_of(blocks):
    """The text of a result, or its parts if it has a picture."""
    if all(block["type"] == "text" for block in blocks):
        return blocks[0]["text"]
    parts = []
    for block in blocks:
        if block["type"] == "image":
            url = f"data:{block['mimeType']};base64,{block['data']}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            parts.append(block)
    return parts


def main(prompt_file):
    tool("initialize", protocolVersion="2025-06-18")
    assert post(URL, {"jsonrpc": "2.0", "method": "notifications/initialized"}) is None
    offered = [
        {"type": "function", "function": {"name": one["name"], "parameters": one["inputSchema"]}}
        for one in tool("tools/list")["tools"]
    ]
    messages = [{"role": "user", "content": Path(prompt_file).read_text()}]
    while True:
        message = ask(messages, tools=offered)
        if not message.get("tool_calls"):
            break
        messages.append(message)
        for call in message["tool_calls"]:
            function = call["function"]
            result = tool(
                "tools/call", name=function["name"], arguments=json.loads(function["arguments"])
            )
            content = content_of(result["content"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


if __name__ == "__main__":
    main(sys.argv[1])
