"""Writes and reads records of episodes; a killed run loses at most the line that it was writing."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.envs.base import Message, ToolResult
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, Tokens, Turn
from xp.episode.tool_calls import MalformedCall
from xp.errors import ExitCode
from xp.lib.atomic import write_atomically
from xp.lib.digest import text_digest
from xp.lib.reading import lines_of

SCHEMA_VERSION: Final = 6
TRAIN: Final = "train"
"""Phase of a training's episodes."""
TOOLS: Final = "tools"
"""Name of the field with the digest of the tools, and of the tools' directory beside the trajectories."""
PROMPT: Final = "prompt"
PROMPTS: Final = "prompts"
"""Name of the prompts' directory beside the trajectories."""


@dataclass(frozen=True)
class Trajectory:
    """One episode. Fields are added with a new `schema_version`, never renamed."""

    run: str
    phase: str
    """`train`, `evaluate`, or another name of the stage."""
    step: int
    """Rollout step as in the metrics: from 1 in training, 0 for an evaluation before it."""
    env: str
    """Name of the member of the mixture."""
    split: str
    index: int
    sample: int
    """Index of the episode among those of its task in this step, from 0."""
    messages: Sequence[Message]
    tool_calls: Sequence[Mapping[str, Any]]
    """Calls, each with its `turn`, the index of the `message` with its answer, and either `malformed` or name,
    arguments and `result`."""
    outcome: EpisodeResult
    started_at: float
    """Seconds since the epoch."""
    elapsed_s: float
    """Seconds from the start to the end of the episode, with the model's own time."""
    open_s: float
    """Seconds to open the session."""
    env_s: Sequence[float]
    """Seconds that the environment took in each turn."""
    tokens: Tokens | None
    tools: str
    """JSON list of the tools' schemas for the chat template; in a file, its digest."""
    prompt: str | None = None
    """The model's exact prompt, with special tokens; in a file, its digest. None: not kept."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further data of an adapter, as JSON values."""

    def to_line(self) -> bytes:
        # `asdict` copies every message and takes five times as long.
        value = {
            "schema_version": SCHEMA_VERSION,
            **vars(self),
            "outcome": vars(self.outcome),
            "tokens": self.tokens and vars(self.tokens),
            TOOLS: tools_digest(self.tools),
            PROMPT: None if self.prompt is None else text_digest(self.prompt),
        }
        # A lone surrogate from a model is written as its JSON escape.
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


def tools_digest(tools: str) -> str:
    """sha256 of the canonical form (`canonical_tools`) of a JSON list of schemas."""
    return text_digest(canonical_tools(tools))


@cache
def canonical_tools(tools: str) -> str:
    """Canonical text of the tools, independent of the formatting in a backend's task file."""
    return json.dumps(json.loads(tools), indent=2, sort_keys=True) + "\n"


def trajectory(
    episode: Episode,
    *,
    run: str,
    phase: str,
    step: int,
    sample: int,
    tools: str,
    tokens: Tokens | None = None,
    prompt: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Trajectory:
    """The record of a settled episode.

    Args:
        step: number of rollout steps before it.
        tools: JSON list of the tools' schemas.
        prompt: first messages and tools as text, if the run keeps prompts.
    """
    messages = list(episode.opening)
    tool_calls: list[Mapping[str, Any]] = []
    for number, turn in enumerate(episode.turns):
        messages.append(Message(role="assistant", content=turn.text))
        tool_calls += _calls(number, turn, len(messages))
        messages += turn.shown
    return Trajectory(
        run=run,
        phase=phase,
        step=step + (phase == TRAIN),
        env=episode.task.env,
        split=episode.task.split,
        index=episode.task.index,
        sample=sample,
        messages=messages,
        tool_calls=tool_calls,
        outcome=episode.settle(),
        started_at=episode.started_at,
        elapsed_s=episode.elapsed_s,
        open_s=episode.open_s,
        env_s=[turn.elapsed_s for turn in episode.turns],
        tokens=tokens,
        tools=tools,
        prompt=prompt,
        extra=extra or {},
    )


class TrajectoryWriter(AbstractContextManager["TrajectoryWriter", None]):
    """Appends complete lines with one write call each; after `write`, the kernel has the line.

    Args:
        path: a separate file for each process; an earlier process's incomplete line is kept and ended by a newline.
            Each distinct list of tools is written once, as `tools/<digest>.json` beside it, and each distinct prompt
            that is kept, as `prompts/<digest>.txt`.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._directory = path.parent
        self._written: set[str] = set()
        self._lock = threading.Lock()
        self._fd = os.open(
            path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        size = os.fstat(self._fd).st_size
        self._is_torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"

    def write(self, record: Trajectory) -> None:
        """Writes a record; raises OSError if the disk is full, and the next record then starts on a new line."""
        line = record.to_line()
        with self._lock:
            self._keep(TOOLS, f"{tools_digest(record.tools)}.json", canonical_tools(record.tools))
            if record.prompt is not None:
                self._keep(PROMPTS, f"{text_digest(record.prompt)}.txt", record.prompt)
            if self._is_torn:
                line = b"\n" + line
            self._is_torn = True
            while line:
                line = line[os.write(self._fd, line) :]
            self._is_torn = False

    def _keep(self, folder: str, name: str, text: str) -> None:
        if name not in self._written:
            write_atomically(self._directory / folder / name, text)
            self._written.add(name)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            fd = self._fd
            self._fd = -1
        if fd >= 0:
            os.close(fd)


def read_trajectories(path: Path) -> list[Mapping[str, Any]]:
    """All complete records of a file. A killed writer may leave incomplete lines.

    Raises:
        ValueError: a record has an unknown version of the schema.
        XpError: (RUN_DIR) the file cannot be read, or is not a regular file.
    """
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines_of(path, ExitCode.RUN_DIR), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        version = record.get("schema_version") if isinstance(record, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"{path}:{number}: trajectory schema {version!r}; this xp reads {SCHEMA_VERSION}"
            )
        records.append(record)
    return records


def own_turns(messages: Sequence[Mapping[str, Any]], num_turns: int) -> list[int]:
    """Indices of the policy's turns in an episode's messages, whose opening may have turns of an assistant too."""
    turns = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[max(0, len(turns) - num_turns) :]


def _calls(number: int, turn: Turn, start: int) -> list[Mapping[str, Any]]:
    """The calls of one turn, in order; a call has no result if it was not executed, no message if it was not answered.

    Args:
        start: index of the turn's first message; the messages answer its calls in order.
    """
    results = iter(turn.results)
    entries: list[Mapping[str, Any]] = []
    for position, call in enumerate(turn.calls):
        entry: dict[str, Any] = {"turn": number}
        if position < len(turn.messages):
            entry["message"] = start + position
        if isinstance(call, MalformedCall):
            entries.append({**entry, "malformed": call.fault})
        else:
            result = _result(next(results, None))
            entries.append({**entry, "name": call.name, "arguments": call.arguments, **result})
    place = {"message": start} if turn.messages and not turn.calls else {}
    # An answer, what a whole message got, or the score of the state that was left.
    entries += [{"turn": number, **place, "answer": True, **_result(result)} for result in results]
    return entries


def _result(result: ToolResult | None) -> Mapping[str, Any]:
    if result is None:
        return {}
    return {"result": asdict(result)}
