"""An agent on the vendors' own clients, which reads events: WIRE is chat, responses or anthropic.

Each wire has a function that asks, notes the policy's thoughts and runs its calls; it returns the policy's message and
those of the results.
"""

import json
import subprocess
import sys
from pathlib import Path

BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
ABOUT = {"name": "bash", "description": "Run a command."}


def bash(arguments):
    ran = subprocess.run(
        ["bash", "-c", arguments.get("command", "")], capture_output=True, text=True
    )
    return ran.stdout + ran.stderr


def note(thoughts):
    Path("thoughts").write_text("".join(thoughts))


def chat(client, messages):
    how = {
        "model": "policy",
        "tools": [{"type": "function", "function": {**ABOUT, "parameters": BASH}}],
    }
    with client.chat.completions.stream(messages=messages, **how) as events:
        message = events.get_final_completion().choices[0].message
    note(getattr(message, "reasoning_content", ""))
    results = [
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": bash(json.loads(call.function.arguments)),
        }
        for call in message.tool_calls or ()
    ]
    return [message.model_dump(exclude_none=True)], results


def responses(client, items):
    tools = [
        {"type": "function", **ABOUT, "parameters": BASH, "strict": False},
        {"type": "web_search"},
    ]
    how = {"model": "policy", "input": items, "store": False, "tools": tools}
    with client.responses.stream(**how) as events:
        output = events.until_done().get_final_response().output
    note(one.content[0].text for one in output if one.type == "reasoning")
    results = [
        {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": bash(json.loads(call.arguments)),
        }
        for call in output
        if call.type == "function_call"
    ]
    return [one.model_dump(exclude_none=True) for one in output], results


def anthropic(client, messages):
    how = {
        "model": "policy",
        "max_tokens": 100,
        "tools": [{**ABOUT, "input_schema": BASH}],
        "messages": messages,
    }
    with client.messages.stream(**how) as events:
        blocks = events.get_final_message().content
    note(one.thinking for one in blocks if one.type == "thinking")
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": bash(one.input)}
        for one in blocks
        if one.type == "tool_use"
    ]
    assistant = {
        "role": "assistant",
        "content": [one.model_dump(exclude_none=True) for one in blocks],
    }
    return [assistant], [{"role": "user", "content": results}] if results else []


def main(prompt_file, wire):
    if wire == "anthropic":
        from anthropic import Anthropic as Client
    else:
        from openai import OpenAI as Client
    ask = {"chat": chat, "responses": responses, "anthropic": anthropic}[wire]
    messages = []
    results = [{"role": "user", "content": Path(prompt_file).read_text()}]
    while results:
        messages += results
        said, results = ask(Client(), messages)
        messages += said


if __name__ == "__main__":
    main(*sys.argv[1:])
