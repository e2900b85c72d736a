"""Compares xp's tool-call dialects with the parsers of vLLM and SGLang on the same mutated calls.

Usage: python -m tools.tool_calls [--vllm PYTHON] [--sglang PYTHON] [--texts N] [--examples N] [DIALECT ...]

Each engine runs in its own Python. Prints, for each dialect and engine, how many texts have which two outcomes.
An outcome is the calls that would be executed: `calls`, or `none` (no call, or a call that cannot be read).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from xp.episode.dialects import Syntax

PARSERS: Final[Mapping[str, tuple[str, str]]] = {
    "hermes": ("hermes", "hermes"),
    "qwen_xml": ("qwen3_xml", "qwen3_coder"),
    "glm": ("glm45", "glm45"),
    "llama_json": ("llama3_json", "llama3"),
    "pythonic": ("pythonic", "pythonic"),
    "mistral": ("mistral", "mistral"),
    "deepseek": ("deepseek_v31", "deepseekv31"),
    "kimi": ("kimi_k2", "kimi_k2"),
    "gemma": ("gemma4", "gemma4"),
    "cohere": ("cohere_command3", "cohere_command4"),
    "minimax": ("minimax_m2", "minimax-m2"),
}
"""Dialect -> vLLM's parser and SGLang's. harmony is left out: both engines read its tokens, not its text."""
TAGS: Final = (
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|tool_call>",
        "<tool_call|>",
        '<|"|>',
    ),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
    ),
    *("<|tool_call_argument_begin|>", "<|START_ACTION|>", "<|END_ACTION|>", "<minimax:tool_call>"),
    *(
        "</minimax:tool_call>",
        "<|python_tag|>",
        "<|channel>",
        "<channel|>",
        "<|turn>",
        "<turn|>",
        "<|tool_response>",
    ),
    *("<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
"""Tokens that vLLM's parsers expect in a model's vocabulary."""
TEXT: Final = {"type": "string"}
PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "text": TEXT,
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "is_on": {"type": "boolean"},
        "names": {"type": "array", "items": TEXT},
        "options": {"type": "object"},
    },
    "required": ["text"],
}
NAMES: Final = ("look", "web-search", "go")
TOOLS: Final = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}}
    for name in NAMES
]
VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "text": (
        "hall",
        "",
        "12",
        "true",
        'a "quoted" word',
        "two\nlines",
        "<b>x</b>, {y}",
        "it's [1]",
        " padded ",
        "Zoë 日本",
    ),
    "count": (3, 0, -7),
    "share": (2.5, 4.0, 1e-9),
    "is_on": (True, False),
    "names": (["a", "b"], [], ['x "y"']),
    "options": ({"k": [None, False]}, {}, {"deep": {"er": 1}}),
}
MAX_SECONDS: Final = 0.5
"""Longest processor time of SGLang for a text; its parser of Gemma's calls does not end for some."""
ROOT: Final = Path(__file__).parents[1]
Outcome = list[tuple[str, Any]] | None
"""Names and arguments of the executed calls; None: no call, or one that cannot be read."""


def texts(dialect: str, count: int) -> list[str]:
    """Turns with one or two calls: a third as the model's template writes them, the others with one or two faults."""
    from xp.episode.dialects import SYNTAX
    from xp.spec.dialect import Dialect

    draw = random.Random(dialect)
    syntax = SYNTAX[Dialect(dialect)]
    return [_turn(draw, syntax, number % 3) for number in range(count)]


def _turn(draw: random.Random, syntax: Syntax, num_faults: int) -> str:
    def call() -> str:
        keys = ["text", *draw.sample([*VALUES][1:], draw.randrange(3))]
        return syntax.write(
            draw.choice(NAMES),
            {key: draw.choice(VALUES[key]) for key in keys if key != "text" or draw.random() < 0.9},
        )

    text = draw.choice(["", "", "", "I look.\n"]) + syntax.joined(
        [call() for _ in range(draw.choice([1, 1, 2]))]
    )
    for _ in range(num_faults):
        text = draw.choice(FAULTS)(draw, text)
    return text


def _at(
    change: Callable[[random.Random, str, int, int], str], *marks: str
) -> Callable[[random.Random, str], str]:
    """A fault at one of the places of these texts, or at any place if the text has none of them."""

    def fault(draw: random.Random, text: str) -> str:
        places = [
            (at, len(mark))
            for mark in marks
            for at in range(len(text))
            if text.startswith(mark, at)
        ]
        at, size = draw.choice(places or [(draw.randrange(len(text) + 1), 1)])
        return change(draw, text, at, size)

    return fault


def _replaced(*others: str) -> Callable[[random.Random, str, int, int], str]:
    return lambda draw, text, at, size: text[:at] + draw.choice(others) + text[at + size :]


def _inserted(*others: str) -> Callable[[random.Random, str, int, int], str]:
    return lambda draw, text, at, size: text[: at + size] + draw.choice(others) + text[at + size :]


_STRUCTURE: Final = (
    *TAGS,
    "<function=",
    "</function>",
    "<parameter=",
    "</parameter>",
    "<invoke name=",
    "</invoke>",
    "<parameter name=",
)
FAULTS: Final[Sequence[Callable[[random.Random, str], str]]] = (
    lambda draw, text: text[: draw.randrange(len(text) + 1)],
    lambda draw, text: text + draw.choice(["\n", " ", "\nI wait.", "\n\n" + text, text]),
    _at(_replaced(""), *_STRUCTURE),
    _at(
        lambda _, text, at, size: text[:at] + text[at : at + size] * 2 + text[at + size :],
        *_STRUCTURE,
    ),
    _at(_inserted("\n", " ", "x", "\n\n"), *_STRUCTURE),
    _at(_inserted(*_STRUCTURE), "hall", "12", "word"),
    _at(_replaced("", "'", '\\"', '""'), '"'),
    _at(_replaced("", "}}", "]", "},"), "}", "]"),
    _at(_replaced("", "{{", "[", "("), "{", "["),
    _at(_replaced("", " = ", ";", " : "), ":", "=", ","),
    _at(
        _replaced("None", "True", "NaN", "3.0", '"3"', "three"),
        "true",
        "false",
        "null",
        "3",
        "0",
        "-7",
        "2.5",
    ),
    _at(
        _replaced("parameters", "arguments", "args", "tool_name", "name", "id"),
        "parameters",
        "arguments",
        "name",
    ),
    _at(_replaced("Look", "loook", "functions.look", ""), "look", "web-search", "go"),
    _at(_replaced("text", "texts", "count", ""), "text", "count", "share", "names"),
    _at(_inserted("x", "\n", "\t", "\\", "\\n", "é", "\u2028")),
)


def xp_outcome(dialect: str, text: str) -> Outcome:
    from xp.envs.base import ToolSpec
    from xp.episode.dialects import SYNTAX
    from xp.episode.tool_calls import ToolCall
    from xp.spec.dialect import Dialect

    calls = SYNTAX[Dialect(dialect)].read(
        text, lambda: [ToolSpec(name, "", PARAMETERS) for name in NAMES]
    )
    # The environment executes the calls that can be read; a malformed one is reported to the model.
    return [
        (call.name, dict(call.arguments)) for call in calls if isinstance(call, ToolCall)
    ] or None


def _read(calls: Sequence[tuple[str | None, str]]) -> Outcome:
    """Calls of an engine; those whose arguments are no JSON object cannot be executed."""
    outcome = []
    for name, arguments in calls:
        try:
            value = json.loads(arguments or "{}")
        except ValueError:
            continue
        if name and isinstance(value, dict):
            outcome.append((name, value))
    return outcome or None


def vllm_outcomes(dialect: str, batch: Sequence[str]) -> list[Outcome]:
    logging.disable(logging.CRITICAL)
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(
        messages=[{"role": "user", "content": "."}], model="m", tools=TOOLS
    )
    if dialect == "cohere":
        from cohere_melody import PyFilter, PyFilterOptions  # as vLLM's own parser does

        filters = (PyFilter(PyFilterOptions().cmd3()).process_full_text(text) for text in batch)
        return [
            _read([(call.name, call.arguments) for call in result.tool_calls]) for result in filters
        ]
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "xp/worker/tiny")
    tokenizer.add_special_tokens({"additional_special_tokens": [*TAGS]})
    parser = ToolParserManager.get_tool_parser(PARSERS[dialect][0])

    one = parser(tokenizer, request.tools)

    def outcome(text: str) -> Outcome:
        calls = one.extract_tool_calls(text, request).tool_calls
        return _read([(call.function.name, call.function.arguments) for call in calls])

    return [outcome(text) for text in batch]


def sglang_outcomes(dialect: str, batch: Sequence[str]) -> list[Outcome]:
    logging.disable(logging.CRITICAL)
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    tools = [Tool(**tool) for tool in TOOLS]

    def give_up(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGVTALRM, give_up)

    def outcome(text: str) -> Outcome:
        parser = FunctionCallParser(tools, PARSERS[dialect][1])
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        try:
            if parser.has_tool_call(text):
                calls = parser.parse_non_stream(text)[1]
            else:
                calls = []
        except TimeoutError:
            print(f"SGLang does not return: {text!r}", file=sys.stderr)
            calls = []
        except Exception:  # SGLang's server answers with the text
            calls = []
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return _read([(call.name, call.parameters) for call in calls])

    return [outcome(text) for text in batch]


ENGINES: Final[Mapping[str, Callable[[str, Sequence[str]], list[Outcome]]]] = {
    "vllm": vllm_outcomes,
    "sglang": sglang_outcomes,
}


def of_engine(
    engine: str, python: str, batches: Mapping[str, Sequence[str]]
) -> dict[str, list[Outcome]]:
    """The outcomes of an engine in its own Python."""
    command = [python, "-m", "tools.tool_calls", "--engine", engine]
    paths = [os.environ.get("PYTHONPATH", ""), str(ROOT / "tests/trainers/slime_stubs")]
    # Slime's environment has no torchvision, which SGLang imports: xp's stub of Slime's tests.
    env = {
        **os.environ,
        "PYTHONPATH": ":".join(filter(None, paths)),
        "SLIME_ACCELERATOR": "none-here",
    }
    done = subprocess.run(
        command,
        input=json.dumps(batches),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=env,
    )
    if done.returncode:
        raise SystemExit(f"{engine} failed:\n{done.stderr[-2000:]}")
    endless = [line for line in done.stderr.splitlines() if line.startswith("SGLang does not")]
    if endless:
        print(
            f"{engine}: no answer within {MAX_SECONDS} s for {len(endless)} texts; {min(endless, key=len)}"
        )
    outcomes: dict[str, list[Outcome]] = json.loads(done.stdout.rpartition("outcomes: ")[2])
    return outcomes


def _plain(outcome: Outcome) -> str:
    """A text that equal outcomes have; 4.0 and 4 are equal, 1 and true are not."""
    whole = re.compile(r"(?<=[ \[])(-?\d+)\.0(?=[,\]}])")
    return whole.sub(r"\1", json.dumps(outcome, sort_keys=True))


def kind(ours: Outcome, theirs: Outcome) -> str:
    """The relation of two outcomes."""
    if _plain(ours) == _plain(theirs):
        return "same"
    if ours is None or theirs is None:
        if ours is None:
            return "only the engine calls"
        return "only xp calls"
    if len(ours) < len(theirs):
        return "fewer"
    if len(ours) > len(theirs):
        return "more"
    return "other arguments"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dialects", nargs="*", default=[])
    parser.add_argument("--vllm", default=".venv-vllm/bin/python")
    parser.add_argument("--sglang", default=".venv-slime/bin/python")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--examples", type=int, default=0)
    parser.add_argument("--engine", choices=[*ENGINES], help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.engine:
        batches = json.load(sys.stdin)
        print(
            "outcomes: "
            + json.dumps(
                {name: ENGINES[given.engine](name, batch) for name, batch in batches.items()}
            )
        )
        return 0
    batches = {name: texts(name, given.texts) for name in given.dialects or PARSERS}
    for engine, python in (("vllm", given.vllm), ("sglang", given.sglang)):
        for name, outcomes in of_engine(engine, python, batches).items():
            examples: dict[str, list[Any]] = defaultdict(list)
            for number, (text, theirs) in enumerate(zip(batches[name], outcomes, strict=True)):
                ours = xp_outcome(name, text)
                examples[kind(ours, theirs) + ("" if number % 3 else ", unchanged")].append(
                    (text, ours, theirs)
                )
            counts = Counter({one: len(of) for one, of in examples.items()})
            print(
                f"{name:10} {engine:6} "
                + "; ".join(f"{one} {count}" for one, count in counts.most_common()),
                flush=True,
            )
            for one, of in examples.items():
                if not one.startswith("same"):
                    for text, ours, theirs in sorted(of, key=lambda one: len(one[0]))[
                        : given.examples
                    ]:
                        print(f"  {one}\n    {text!r}\n    xp     {ours}\n    {engine:6} {theirs}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
