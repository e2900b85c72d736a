"""Use of tools in the trajectories of a run's training, counted one record at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from xp.episode.trajectory import TOOLS, own_turns
from xp.errors import ExitCode, XpError
from xp.lib.reading import is_finite, is_name, json_of
from xp.worker.diagnosis.history import ToolUse


class ToolCount:
    """Counts tool calls without keeping trajectories, which may be larger than memory."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._offered: set[tuple[Path, str]] = set()
        self._num_episodes = 0
        self._waited = 0.0
        self._elapsed = 0.0
        self._malformed: str | None = None

    def add(self, file: Path, record: Any) -> list[str]:
        """Counts one record of a file of trajectories, and returns the names of its calls; a malformed record is
        skipped."""
        try:
            calls = [str(call["name"]) for call in record["tool_calls"] if "name" in call]
            waited = record["env_s"]
            elapsed = record["elapsed_s"]
            if not all(map(is_finite, (*waited, elapsed))):
                return []
            malformed = [call["turn"] for call in record["tool_calls"] if "malformed" in call]
            if malformed and self._malformed is None:
                turns = own_turns(record["messages"], record["outcome"]["num_turns"])
                self._malformed = str(record["messages"][turns[malformed[0]]]["content"])
        except (LookupError, TypeError):
            return []
        self._num_episodes += 1
        self._calls.update(calls)
        self._offered.add((file.parent, str(record.get(TOOLS, ""))))
        self._waited += sum(waited)
        self._elapsed += elapsed
        return calls

    def result(self) -> ToolUse | None:
        """The counts so far. None means that no episode was counted."""
        if not self._num_episodes:
            return None
        names = frozenset(
            name for directory, digest in self._offered for name in _tools(directory, digest)
        )
        share = None
        if self._elapsed > 0:
            share = self._waited / self._elapsed
        return ToolUse(self._num_episodes, names, self._calls, share, self._malformed)


def _tools(directory: Path, digest: str) -> list[str]:
    """Names of the tools behind a trajectory's digest."""
    file = directory / TOOLS / f"{digest}.json"
    if not is_name(digest) or not file.is_file():
        return []
    try:
        return [
            str(schema["function"]["name"])
            for schema in json_of(file, ExitCode.RUN_DIR, below=directory)
        ]
    except (XpError, LookupError, TypeError):
        return []
