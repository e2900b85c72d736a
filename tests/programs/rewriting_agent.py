"""An agent that rewrites its history: WIRE is chat, responses or anthropic.

It compacts every three turns, has a sub-agent with other tools beside a turn, sends a request again, and leaves an
answer.
"""

import json
import os
import socket
import sys
import threading

from shell_agent import post

TURNS = 7
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}


def tool(wire, name):
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    if wire == "anthropic":
        return {"name": name, "input_schema": schema}
    function = {"name": name, "parameters": schema}
    return {"type": "function", **(function if wire == "responses" else {"function": function})}


def body(wire, messages, name):
    field = "input" if wire == "responses" else "messages"
    return {
        "model": "policy",
        field: messages,
        "tools": [tool(wire, name)],
        "max_tokens": 9,
    }


def ask(wire, messages, name="bash", number=0):
    """The parts of the answer that the next request repeats, and its text."""
    url = os.environ["ANTHROPIC_BASE_URL"] + PATHS[wire]
    whole = post(
        url,
        body(wire, messages, name),
        **{"x-stainless-retry-count": str(number)},
    )
    if wire == "chat":
        message = whole["choices"][0]["message"]
        return [message], message["content"] or ""
    if wire == "responses":
        return whole["output"], "".join(
            one["content"][0]["text"] for one in whole["output"] if "content" in one
        )
    message = {"role": "assistant", "content": whole["content"]}
    return [message], "".join(one.get("text", "") for one in whole["content"])


def leave(wire, messages):
    """Sends a request for a stream, and does not read it; the file of LEFT says that it has left."""
    data = json.dumps({**body(wire, messages, "bash"), "stream": True}).encode()
    host, _, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").partition(":")
    head = [f"POST {PATHS[wire]} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    head.append(f"x-api-key: {os.environ['OPENAI_API_KEY']}")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    open(os.environ.get("LEFT", os.devnull), "a").close()


def user(text):
    return {"role": "user", "content": text}


def explore(wire):
    messages = [user("Look around.")]
    messages += [*ask(wire, messages, "look")[0], user("Further.")]
    ask(wire, messages, "look")


def main(prompt_file, wire):
    with open(prompt_file) as file:
        task = file.read()
    messages = [user(task)]
    other = threading.Thread(target=explore, args=[wire])
    for turn in range(TURNS):
        answer, text = ask(wire, messages)
        if turn == 1:
            assert ask(wire, messages, number=1)[1] == text
        if turn == 3:
            other.start()
        if turn == 4:
            leave(wire, [*messages, *answer, user("Never mind.")])
        messages += [*answer, user(f"Result {turn}.")]
        if turn % 3 == 2:
            messages = [user(f"{task} So far: {text}")]
    other.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
