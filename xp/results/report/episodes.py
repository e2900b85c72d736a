"""Index of the episodes of a run or an evaluation: numbers in memory, texts read from disk on demand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from xp.episode.trajectory import SCHEMA_VERSION, TRAIN
from xp.errors import ExitCode, XpError
from xp.execution.health import EpisodeCount
from xp.execution.record import number_of
from xp.lib.reading import check_below, is_finite
from xp.lib.reading import opened as opened_file


class EpisodeEntry(NamedTuple):
    """Numbers of one episode."""

    attempt: int
    phase: str
    step: int
    """See Trajectory."""
    env: str
    split: str
    task_index: int
    sample: int
    reward: float | None
    status: str
    turns: int
    calls: int
    malformed: int
    generated: int | None
    """Tokens that the policy generated. None means that they are not counted."""
    seconds: float

    @property
    def task(self) -> str:
        return f"{self.env}/{self.split}/{self.task_index}"


class EpisodeIndex:
    """The episodes below a run's directory, in the order of reading; `refresh` adds new ones.

    Args:
        run: directory of the run, or of an evaluation.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._read_to: dict[Path, int] = {}
        self._places: list[tuple[Path, int]] = []
        self.entries: list[EpisodeEntry] = []
        self.num_unreadable = 0
        """Number of lines that are incomplete (killed writer) or of an unknown schema."""
        self.count = EpisodeCount()
        self.calls: dict[tuple[int, int], Counter[str]] = {}
        """Attempt and step of the training -> tool -> number of its calls."""

    def refresh(self) -> None:
        """Reads new lines since the last call; an incomplete line is left for the next call.

        Raises:
            XpError: (RUN_DIR) a link leads out of the run.
        """
        files = (
            *self._run.glob("attempt_*/*/trajectories/*.jsonl"),
            *self._run.glob("trajectories/*.jsonl"),
        )
        for file in sorted(
            files, key=lambda file: (self._attempt_of(file), TRAIN not in file.parts, str(file))
        ):
            check_below(file, self._run, ExitCode.RUN_DIR)
            if file.is_file():
                self._read_on(file)

    def record(self, number: int) -> Mapping[str, Any]:
        """Full record of the episode with this number; raises XpError(RUN_DIR) if the file has changed."""
        return next(iter(self.records([number])))

    def records(self, numbers: Iterable[int]) -> Iterator[Mapping[str, Any]]:
        """Full records of several episodes in order; each file is opened once."""
        with ExitStack() as stack:
            opened: dict[Path, BinaryIO] = {}
            for number in numbers:
                file, offset = self._places[number]
                try:
                    if file not in opened:
                        opened[file] = stack.enter_context(opened_file(file, ExitCode.RUN_DIR))
                    opened[file].seek(offset)
                    yield json.loads(opened[file].readline())
                except (OSError, ValueError, RecursionError) as error:
                    raise XpError(
                        f"{file} was changed while it was read: {error}", ExitCode.RUN_DIR
                    ) from None

    def file_of(self, number: int) -> Path:
        """The file with an episode."""
        return self._places[number][0]

    def last_attempt_of(self) -> dict[tuple[str, int], int]:
        """Phase and step -> last attempt that played it; earlier attempts' episodes were replaced."""
        attempts: dict[tuple[str, int], int] = {}
        for entry in self.entries:
            key = (entry.phase, entry.step)
            attempts[key] = max(attempts.get(key, 0), entry.attempt)
        return attempts

    def _attempt_of(self, file: Path) -> int:
        return number_of(Path(file.relative_to(self._run).parts[0]))

    def _read_on(self, file: Path) -> None:
        attempt = self._attempt_of(file)
        offset = self._read_to.get(file, 0)
        is_training = TRAIN in file.relative_to(self._run).parts
        with opened_file(file, ExitCode.RUN_DIR) as lines:
            lines.seek(offset)
            # An incomplete line is being written.
            while (line := lines.readline()).endswith(b"\n"):
                record = _parsed(line)
                entry = _entry(record, attempt)
                if entry is not None:
                    self.entries.append(entry)
                    names = self.count.add(file, record)
                    if is_training:
                        self.calls.setdefault((attempt, entry.step), Counter()).update(names)
                    self._places.append((file, offset))
                elif line.strip():
                    self.num_unreadable += 1
                offset += len(line)
        self._read_to[file] = offset


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entry(record: Any, attempt: int) -> EpisodeEntry | None:
    """Numbers of an episode's record; None for another value or an unknown schema."""
    try:
        if record["schema_version"] != SCHEMA_VERSION:
            return None
        outcome = record["outcome"]
        tokens = record["tokens"]
        phase = str(record["phase"])
        return EpisodeEntry(
            attempt=attempt,
            phase=phase,
            step=int(record["step"]),
            env=str(record["env"]),
            split=str(record["split"]),
            task_index=int(record["index"]),
            sample=int(record["sample"]),
            reward=None if outcome["reward"] is None else _finite(outcome["reward"]),
            status=str(outcome["status"]),
            turns=int(outcome["num_turns"]),
            calls=int(outcome["num_tool_calls"]),
            malformed=int(outcome["num_malformed"]),
            generated=None if tokens is None else int(tokens["generated"]),
            seconds=_finite(record["elapsed_s"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _finite(value: Any) -> float:
    if not is_finite(value):
        raise ValueError("not a finite number")
    return float(value)
