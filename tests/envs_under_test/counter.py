"""Small ORS environments with the properties that break clients: state, terminal tools, slowness, long output."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from openreward.chat_backends import ChatBackend, ChatCompletion
from openreward.environments import (
    Environment,
    GroupCandidate,
    TextBlock,
    ToolOutput,
    Toolset,
    terminal,
    tool,
)
from openreward.environments.utils import run_user_callable
from openreward.judging import PairwiseJudge, rank_group
from pydantic import BaseModel

from tests.support import LOG_VARIABLE

TASKS_VERSION = "1"


class Noted(Environment):
    """Notes what is done to each of its instances."""

    def note(self, event: str) -> None:
        self.who = getattr(self, "who", None) or uuid.uuid4().hex
        path = os.environ.get(LOG_VARIABLE)
        if path:
            with Path(path).open("a") as log:
                log.write(f"{event} {self.who}\n")


def said(text: str, reward: float | None = None, finished: bool = False) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=finished)


class Guess(BaseModel):
    value: str


class Amount(BaseModel):
    amount: float


class Counter(Noted):
    """`inc` is not idempotent, `submit` ends the episode with 1.0 if the count is the task's."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.secrets = secrets
        self.count = 0
        self.note("init")

    def teardown(self) -> None:
        self.note("teardown")

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [
            {"goal": goal % 5, "split": split} for goal in range(700 if split == "train" else 20)
        ]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Count to {self.task_spec['goal']}.")]

    @tool
    def inc(self) -> ToolOutput:
        """Add one."""
        self.count += 1
        self.note("inc")
        return said(str(self.count), 0.25)

    @tool
    def submit(self) -> ToolOutput:
        """Hand in the count."""
        self.note("submit")
        return said("done", 1.0 if self.count == self.task_spec["goal"] else 0.0, True)

    @tool
    def say(self, args: Guess) -> ToolOutput:
        """Say it back."""
        self.note("say")
        return said(args.value)

    @tool
    async def sleep(self, args: Amount) -> ToolOutput:
        """Wait, in seconds."""
        self.note("sleep")
        await asyncio.sleep(args.amount)
        return said("slept", 0.0)

    @tool
    def crash(self) -> ToolOutput:
        """Raise."""
        self.note("crash")
        raise RuntimeError("the tool broke")

    @tool
    def secret(self, args: Guess) -> ToolOutput:
        """Read a secret."""
        return said(self.secrets.get(args.value, "none"))

    @tool
    def clock(self) -> ToolOutput:
        """Something that is different each time."""
        return said(str(time.time_ns()))


class Hungry(Counter):
    """Takes the memory that it is told to take."""

    @tool
    def eat(self, args: Amount) -> ToolOutput:
        """Take so many gigabytes."""
        return said(str(len(bytearray(int(args.amount * 1e9)))))

    @tool
    def feed(self, args: Amount) -> ToolOutput:
        """Let a process of its own take so many gigabytes, and say what it wrote."""
        program = f"print(len(bytearray({int(args.amount * 1e9)})))"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        return said(done.stdout.strip() or done.stderr.strip().splitlines()[-1])


class Gathering(Counter):
    """Has a tool that blocks its thread until many sessions have called it."""

    _barrier = threading.Barrier(40)

    @tool
    def meet(self) -> ToolOutput:
        """Wait for the others."""
        self._barrier.wait(timeout=240)
        return said("met")


class Stuck(Counter):
    """Has a tool that never lets its server's loop turn again."""

    @tool
    async def stall(self) -> ToolOutput:
        """Answer nobody any more."""
        time.sleep(3600)
        return said("never")

    @tool
    async def leave(self) -> ToolOutput:
        """Start a process and leave it behind."""
        return said(str(subprocess.Popen(["sleep", "600"]).pid))

    @tool
    async def backtrack(self) -> ToolOutput:
        """Keep the interpreter for ever: no other thread and no signal handler of Python runs again."""
        re.fullmatch(r"(a|a?)+b", "a" * 64)
        return said("never")


class Quiz(Environment):
    """Takes the final plain message as its answer."""

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        del split
        return [{"question": "What is 6 times 7?", "answer": "42"}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=self.task_spec["question"])]

    @terminal
    @tool
    def grade(self, args: Guess) -> ToolOutput:
        """Compare."""
        return said("graded", float(args.value == self.task_spec["answer"]), True)


class Box:
    """A sandbox that answers each command with itself."""

    async def run(self, command: str) -> tuple[str, int]:
        return f"ran {command}", 0


class Words(Toolset):
    """A toolset of the class, with the terminal tool; takes no argument and grades what the session has done."""

    @tool
    def spell(self, args: Guess) -> ToolOutput:
        """Note a word."""
        self.env.spelled = args.value
        return said(" ".join(args.value), 0.25)

    @terminal
    @tool
    def hand_in(self) -> ToolOutput:
        """Grade the word."""
        return said("graded", float(self.env.spelled == "cat"), True)


class Boxed(Counter):
    """Has a sandbox for the server's toolsets, a `bash` of its own, and a toolset with the terminal tool."""

    toolsets = (Words,)

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.sandbox = Box()
        self.spelled = ""

    @tool
    def bash(self) -> ToolOutput:
        """The environment's own."""
        return said("own bash")

    @tool
    def variable(self, args: Guess) -> ToolOutput:
        """Read a variable of the server."""
        return said(os.environ.get(args.value, "none"))


class Deployed(Environment):
    """Has tasks that depend on the variable REVISION, as after a deploy: `reversed`, `signed` anew, or `fewer`."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        revision = os.environ.get("REVISION")
        tasks: list[dict[str, Any]] = [{"word": f"{split} {number}"} for number in range(20)]
        if revision == "reversed":
            return tasks[::-1]
        if revision == "signed":
            return [
                task | {"picture": f"https://example.org/?signature={uuid.uuid4().hex}"}
                for task in tasks
            ]
        return tasks[:10] if revision == "fewer" else tasks

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=f"Say: {self.task_spec['word']}")]

    @tool
    def say(self) -> ToolOutput:
        """Say it."""
        return said("said", reward=1.0, finished=True)


class PrefersLonger(ChatBackend):
    """A judge that prefers the longer of two candidates, whatever their order; gives no verdict on `no verdict`."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    async def create(self, *, messages: Any, **_: Any) -> ChatCompletion:
        self._note("compared")
        text = "".join(part["text"] for part in messages[1]["content"])
        first, second = (text.partition(f"<candidate_{one}>")[2].partition("</")[0] for one in "ab")
        if len(first) == len(second):
            winner = "tie"
        else:
            winner = "A" if len(first) > len(second) else "B"
        verdict = "no verdict" if "no verdict" in text else f'{{"winner": "{winner}"}}'
        return ChatCompletion(text=verdict)


class Debate(Noted):
    """Scores a group by openreward's own pairwise tournament, in both orders."""

    def __init__(self, task_spec: Any = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.note("init")

    def teardown(self) -> None:
        self.note("teardown")

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"about": split}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Argue.")]

    @tool
    def argue(self, params: Guess) -> ToolOutput:
        """Hand in an argument."""
        return said(params.value, 0.5, True)

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[float]:
        for one in candidates:
            calls = [
                block
                for message in one.messages
                for block in message.blocks
                if block.type == "tool_call"
            ]
            results = [
                block
                for message in one.messages
                for block in message.blocks
                if block.type == "tool_result"
            ]
            assert [block.id for block in calls] == [block.tool_call_id for block in results]
        judge = PairwiseJudge(model="stub", backend=PrefersLonger(self.note), both_orders=True)
        context = await run_user_callable(self.get_messages)
        return await rank_group([one.messages for one in candidates], judge, context=context)
