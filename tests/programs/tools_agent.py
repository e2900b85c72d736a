"""An agent that offers the tools of the task's own server (the Model Context Protocol over HTTP) to its model."""

import json
import os
import sys
import urllib.request
from pathlib import Path

HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or "null")


def tool(method, **params):
    url = os.environ["XP_TOOLS_URL"]
    return post(url, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})["result"]


def main(prompt_file):
    tool("initialize", protocolVersion="2025-06-18")
    assert post(os.environ["XP_TOOLS_URL"], {"jsonrpc": "2.0", "method": "notifications/initialized"}) is None
    offered = [
        {"type": "function", "function": {"name": one["name"], "parameters": one["inputSchema"]}}
        for one in tool("tools/list")["tools"]
    ]
    messages = [{"role": "user", "content": Path(prompt_file).read_text()}]
    while True:
        body = {"model": "policy", "messages": messages, "tools": offered}
        message = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            function = call["function"]
            result = tool("tools/call", name=function["name"], arguments=json.loads(function["arguments"]))
            text = result["content"][0]["text"]
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


if __name__ == "__main__":
    main(sys.argv[1])
