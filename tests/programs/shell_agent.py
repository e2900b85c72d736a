"""An agent of forty lines on the standard library: a loop of requests with one tool, `bash`.

Flags, for the tests: `rewrite` shortens its history, `parallel` has a second conversation, `retry` sends each request
again, `title` asks for a title first, `late` never ends, `NAME=JSON` is a further field of each request.
"""

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "description": "Run a command.", "parameters": BASH},
    }
]


def post(url, body, **more):
    headers = {
        "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type": "application/json",
        **more,
    }
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers)
    ) as answer:
        return json.loads(answer.read() or "null")


def ask(messages, flags=(), tools=TOOLS, **more):
    extra = {
        name: json.loads(value) for name, _, value in (one.partition("=") for one in flags) if value
    }
    body = {"model": os.environ["XP_MODEL"], "messages": messages, "tools": tools, **extra}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, **more)["choices"][0][
        "message"
    ]


def main(prompt_file, *flags):
    with open(prompt_file) as file:
        messages = [
            {"role": "system", "content": "You use bash."},
            {"role": "user", "content": file.read()},
        ]
    if "title" in flags:
        ask([{"role": "user", "content": "A title?"}], tools=[])
    while True:
        message = ask(messages, flags)
        if "retry" in flags:
            assert ask(messages, flags, **{"x-stainless-retry-count": "1"}) == message
        if "parallel" in flags:
            other = threading.Thread(
                target=ask, args=([{"role": "user", "content": "A title?"}],), daemon=True
            )
            other.start()
            time.sleep(0.5)
        messages.append(message)
        for call in message.get("tool_calls") or ():
            command = json.loads(call["function"]["arguments"]).get("command", "")
            ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            messages.append(
                {"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr}
            )
        if "late" in flags:
            time.sleep(600)
        if "rewrite" in flags:
            messages = [messages[0], {"role": "user", "content": "Go on."}]
        elif not message.get("tool_calls"):
            return


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except urllib.error.HTTPError as error:
        sys.exit(f"HTTP {error.code}: {error.read().decode()}")
