"""An agent on the vendors' own clients: WIRE is chat, responses or anthropic; with `stream` it reads events."""

import json
import subprocess
import sys
from pathlib import Path

BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
ABOUT = {"name": "bash", "description": "Run a command."}


def bash(arguments):
    ran = subprocess.run(["bash", "-c", arguments.get("command", "")], capture_output=True, text=True)
    return ran.stdout + ran.stderr


def note(thoughts):
    Path("thoughts").write_text("".join(thoughts))


def chat(prompt, stream):
    from openai import OpenAI

    client, messages = OpenAI(), [{"role": "user", "content": prompt}]
    how = {"model": "policy", "tools": [{"type": "function", "function": {**ABOUT, "parameters": BASH}}]}
    while True:
        if stream:
            with client.chat.completions.stream(messages=messages, **how) as events:
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(messages=messages, **how).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        note(getattr(message, "reasoning_content", ""))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            content = bash(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def responses(prompt, stream):
    from openai import OpenAI

    client, items = OpenAI(), [{"role": "user", "content": prompt}]
    how = {"model": "policy", "tools": [{"type": "function", **ABOUT, "parameters": BASH, "strict": False}]}
    how["tools"].append({"type": "web_search"})
    while True:
        if stream:
            with client.responses.stream(input=items, store=False, **how) as events:
                response = events.until_done().get_final_response()
        else:
            response = client.responses.create(input=items, store=False, **how)
        items += [one.model_dump(exclude_none=True) for one in response.output]
        note(one.content[0].text for one in response.output if one.type == "reasoning")
        calls = [one for one in response.output if one.type == "function_call"]
        if not calls:
            return
        for call in calls:
            output = bash(json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


def anthropic(prompt, stream):
    from anthropic import Anthropic

    client, messages = Anthropic(), [{"role": "user", "content": prompt}]
    how = {"model": "policy", "max_tokens": 100, "tools": [{**ABOUT, "input_schema": BASH}]}
    while True:
        if stream:
            with client.messages.stream(messages=messages, **how) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=messages, **how)
        messages.append(
            {"role": "assistant", "content": [one.model_dump(exclude_none=True) for one in message.content]}
        )
        note(one.thinking for one in message.content if one.type == "thinking")
        calls = [one for one in message.content if one.type == "tool_use"]
        if not calls:
            return
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": bash(one.input)} for one in calls]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    wire = {"chat": chat, "responses": responses, "anthropic": anthropic}[sys.argv[2]]
    wire(Path(sys.argv[1]).read_text(), "stream" in sys.argv)
