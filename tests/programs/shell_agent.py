"""An agent of forty lines on the standard library: a loop of requests with one tool, `bash`.

Flags, for the tests: `stream` asks for events, `rewrite` shortens its history, `parallel` has a second conversation,
`retry` sends each request again, `late` never ends, `NAME=JSON` is a further field of each request.
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
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": BASH}}]


def ask(messages, flags, number=0):
    extra = {name: json.loads(value) for name, _, value in (one.partition("=") for one in flags) if value}
    body = {"model": os.environ["XP_MODEL"], "messages": messages, "tools": TOOLS, "stream": "stream" in flags, **extra}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {**headers, "x-stainless-retry-count": str(number)}
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
    if "stream" not in flags:
        return json.loads(text)["choices"][0]["message"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert text.rstrip().endswith("data: [DONE]")
    message = events[0]["choices"][0]["delta"]
    assert events[1]["choices"][0]["finish_reason"] in ("stop", "tool_calls", "length")
    for call in message.get("tool_calls", ()):
        call.pop("index")
    return message


def main(prompt_file, *flags):
    with open(prompt_file) as file:
        messages = [{"role": "system", "content": "You use bash."}, {"role": "user", "content": file.read()}]
    while True:
        message = ask(messages, flags)
        if "retry" in flags:
            assert ask(messages, flags, 1) == message
        if "parallel" in flags:
            other = threading.Thread(target=ask, args=([{"role": "user", "content": "A title?"}], flags), daemon=True)
            other.start()
            time.sleep(0.5)
        messages.append(message)
        for call in message.get("tool_calls") or ():
            command = json.loads(call["function"]["arguments"]).get("command", "")
            ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout + ran.stderr})
        if "late" in flags:
            time.sleep(600)
        if "rewrite" in flags:
            messages = [messages[0], {"role": "user", "content": "Go on."}]
        elif not message.get("tool_calls"):
            print("done:", message["content"])
            return


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except urllib.error.HTTPError as error:
        sys.exit(f"HTTP {error.code}: {error.read().decode()}")
