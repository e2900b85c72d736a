"""Look-alikes of the catalog's environments with a terminal: CTF, SETA, EndlessTerminals, on a dictionary of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import ClassVar

from openreward.environments import Environment, JSONObject, TextBlock, ToolOutput, tool
from pydantic import BaseModel

TASKS_VERSION = "1"


class Command(BaseModel):
    command: str


class PathOnly(BaseModel):
    path: str


class Content(BaseModel):
    path: str
    content: str


class Edit(BaseModel):
    path: str
    old: str
    new: str


class Pattern(BaseModel):
    pattern: str


class Flag(BaseModel):
    flag: str


class _Terminal(Environment):  # type: ignore[misc]
    """Files in memory; a subclass says how many tasks there are. `cat FILE` is all that its shell knows."""

    sizes: ClassVar[Mapping[str, int]]

    def __init__(self, task_spec: JSONObject = {}, secrets: dict[str, str] = {}) -> None:  # noqa: B006
        super().__init__(task_spec, secrets)
        self.secret = f"flag{{{task_spec['split']}-{task_spec['index']}}}"
        self.files = {"flag.txt": self.secret, "notes.txt": "look around"}

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(cls.sizes)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        return [{"split": split, "index": index} for index in range(cls.sizes[split])]

    def get_prompt(self) -> Sequence[TextBlock]:
        return [TextBlock(text="Find the flag in flag.txt.")]

    def run(self, command: str) -> ToolOutput:
        word, _, rest = command.strip().partition(" ")
        return said(
            self.files.get(rest.strip(), "no such file") if word == "cat" else "unknown command"
        )


class CTF(_Terminal):
    """The flag is a substring of what is submitted; submitting ends the episode."""

    sizes: ClassVar[Mapping[str, int]] = {"train": 179, "test": 6}

    @tool  # type: ignore[untyped-decorator]
    async def bash(self, params: Command) -> ToolOutput:
        """Run."""
        return self.run(params.command)

    @tool  # type: ignore[untyped-decorator]
    async def read_file(self, params: PathOnly) -> ToolOutput:
        """Read."""
        return said(self.files.get(params.path, "no such file"))

    @tool  # type: ignore[untyped-decorator]
    async def submit(self, params: Flag) -> ToolOutput:
        """Submit."""
        return ended(float(self.secret in params.flag))


class SETA(_Terminal):
    """Eight tools; the share of two tests that pass, on submission."""

    sizes: ClassVar[Mapping[str, int]] = {"train": 1376}

    @tool  # type: ignore[untyped-decorator]
    async def bash(self, params: Command) -> ToolOutput:
        """Run."""
        return self.run(params.command)

    @tool  # type: ignore[untyped-decorator]
    async def read(self, params: PathOnly) -> ToolOutput:
        """Read."""
        return said(self.files.get(params.path, "no such file"))

    @tool  # type: ignore[untyped-decorator]
    async def write(self, params: Content) -> ToolOutput:
        """Write."""
        self.files[params.path] = params.content
        return said("written")

    @tool  # type: ignore[untyped-decorator]
    async def edit(self, params: Edit) -> ToolOutput:
        """Replace."""
        self.files[params.path] = self.files.get(params.path, "").replace(params.old, params.new)
        return said("edited")

    @tool  # type: ignore[untyped-decorator]
    async def grep(self, params: Pattern) -> ToolOutput:
        """Search."""
        return said(
            ", ".join(name for name, text in self.files.items() if params.pattern in text)
            or "nothing"
        )

    @tool  # type: ignore[untyped-decorator]
    async def glob(self, params: Pattern) -> ToolOutput:
        """Match names."""
        return said(
            ", ".join(name for name in self.files if fnmatch(name, params.pattern)) or "nothing"
        )

    @tool  # type: ignore[untyped-decorator]
    async def ls(self) -> ToolOutput:
        """List."""
        return said(", ".join(self.files))

    @tool  # type: ignore[untyped-decorator]
    async def submit_solution(self) -> ToolOutput:
        """Submit."""
        written = self.files.get("answer.txt", "")
        return ended(0.25 * bool(written) + 0.75 * (written == self.secret))


class EndlessTerminals(_Terminal):
    """A shell and `done`."""

    sizes: ClassVar[Mapping[str, int]] = {"train": 3255}

    @tool  # type: ignore[untyped-decorator]
    async def bash(self, params: Command) -> ToolOutput:
        """Run; `write TEXT` answers."""
        if params.command.startswith("write "):
            self.files["answer.txt"] = params.command.removeprefix("write ")
            return said("written")
        return self.run(params.command)

    @tool  # type: ignore[untyped-decorator]
    async def done(self) -> ToolOutput:
        """End."""
        return ended(float(self.files.get("answer.txt") == self.secret))


def said(text: str) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text=text)], reward=0.0, finished=False)


def ended(reward: float) -> ToolOutput:
    return ToolOutput(blocks=[TextBlock(text="done")], reward=reward, finished=True)
