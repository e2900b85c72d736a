"""An environment in memory with a size, delays and failures chosen by the test; records its calls."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.fake_session import RULES
from tests.support.sections import (
    changed_member,
    held_out_rule,
    member_of,
    prepare_of,
    replace,
    selection,
)
from xp.envs.base import EnvUnavailable, Message, ProtocolError, Task, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.lib.atomic import write_atomically
from xp.tasks.config import MemberConfig, PrepareConfig

TOOL = ToolSpec(
    "submit", "Hand in.", {"type": "object", "properties": {"answer": {"type": "string"}}}
)


class FakeProvider:
    """Behaves as the JSON file that `target` names says.

    Keys: `splits` (name -> number of tasks), `log`, `latency_s` (of opening a session), `failing` (task ids, without
    the member), `down` (refuses everything), `uniform` (all tasks alike), `shared` (number of tasks that every split
    has), `version`, `lists` (the splits whose tasks it lists), `order` (index -> the number in its question).
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        assert config.target is not None
        self.name = config.name
        self.behaviour: dict[str, Any] = json.loads(Path(config.target).read_text())
        self.note("load")

    def note(self, event: str) -> None:
        descriptor = os.open(self.behaviour["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{event}\n".encode())
        os.close(descriptor)

    def version(self) -> str:
        return str(self.behaviour.get("version", "1"))

    def splits(self) -> tuple[str, ...]:
        if self.behaviour.get("down"):
            raise EnvUnavailable("connection refused")
        return tuple(self.behaviour["splits"])

    def num_tasks(self, split: str) -> int:
        return int(self.behaviour["splits"][split])

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [Task(self.name, split, index, self._spec(split, index)) for index in indices]

    def listed(self, split: str) -> list[Task] | None:
        self.note(f"list {split}")
        if split not in self.behaviour.get("lists", ()):
            return None
        return self.tasks(split, range(self.num_tasks(split)))

    def _spec(self, split: str, index: int) -> dict[str, Any]:
        if self.behaviour.get("uniform"):
            return {"question": "always this"}
        if index < self.behaviour.get("shared", 0):
            return {"question": f"shared {index}", "answer": "CANARY-ANSWER"}
        index = self.behaviour.get("order", {}).get(str(index), index)
        return {"question": f"{split} {index}", "answer": "CANARY-ANSWER"}

    def open(self, task: Task) -> FakeSession:
        self.note(f"open {task.split}/{task.index}")
        time.sleep(self.behaviour.get("latency_s", 0.0))
        if f"{task.split}/{task.index}" in self.behaviour.get("failing", ()):
            self.note(f"close {task.split}/{task.index}")
            raise ProtocolError("no such luck")
        return FakeSession(self, task)

    def close(self) -> None:
        self.note("unload")


class FakeSession:
    takes_answer = False

    def __init__(self, provider: FakeProvider, task: Task) -> None:
        self.provider = provider
        self.task = task

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=f"Solve: {self.task.spec['question']}")]

    def tools(self) -> tuple[ToolSpec, ...]:
        return (TOOL,)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        raise AssertionError(f"preparation calls no tool: {name} {arguments}")

    def answer(self, text: str) -> ToolResult:
        raise AssertionError(f"preparation answers nothing: {text}")

    def close(self) -> None:
        self.provider.note(f"close {self.task.split}/{self.task.index}")


class FakeWorld:
    """A directory with one behaviour, its log, and the configuration that leads there."""

    def __init__(self, root: Path, **behaviour: Any) -> None:
        self.root = root
        self.log = root / "log"
        self.log.touch()
        self.change(**{"splits": {"train": 200, "test": 20}, "log": str(self.log), **behaviour})

    def change(self, **behaviour: Any) -> None:
        path = self.root / "behaviour.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        write_atomically(path, json.dumps({**known, **behaviour}))  # a process may be reading it

    def member(self, system_prompt: str = "Think.", **changes: Any) -> MemberConfig:
        provider = "tests.support.fake_provider:FakeProvider"
        target = str(self.root / "behaviour.json")
        env = replace(
            RULES,
            name="fake",
            provider=provider,
            target=target,
            serve=None,
            system_prompt=system_prompt,
        )
        return changed_member(member_of(env, selection(), held_out_rule("test")), **changes)

    def config(
        self, allow_missing_fraction: float = 0.0, concurrency: int = 16, **changes: Any
    ) -> PrepareConfig:
        return prepare_of({"fake": self.member(**changes)}, allow_missing_fraction, concurrency)

    def opened(self) -> Counter[str]:
        """Number of times that each task was opened."""
        return self._noted("open")

    def closed(self) -> Counter[str]:
        return self._noted("close")

    def forget(self) -> None:
        self.log.write_text("")

    def _noted(self, event: str) -> Counter[str]:
        lines = (line.partition(" ") for line in self.log.read_text().splitlines())
        return Counter(what for name, _, what in lines if name == event)
