"""An evaluation's directory: the request, a record of each episode, and the summary."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xp.episode.evaluation import RECORD, SCHEMA_VERSION, EvaluationRecord, read_evaluation
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode, XpError
from xp.execution.run_directory import resource_errors
from xp.lib.atomic import try_lock, write_json
from xp.lib.digest import digest_of
from xp.lib.loaded_code import FILE, changed
from xp.lib.reading import is_name
from xp.lib.text import counted
from xp.tasks import profile

ROOM: Final = profile.ROOM
REQUEST: Final = "request.json"
EPISODES: Final = "trajectories/episodes.jsonl"
LOCK: Final = ".lock"
JUDGES: Final = "judges_cost_usd"
"""Key of an episode's usage: cost of its judges in US dollars, if their prices are known."""

Number = tuple[str, int]
"""A task's id and the number of its sample."""


@dataclass(frozen=True)
class EvaluationIdentity:
    """Identity of one evaluation, by its digest; without secrets and a machine's paths."""

    env: str
    """Name of the environment or mixture."""
    model: Mapping[str, Any]
    """Kind, name, and identity of its weights or its endpoint."""
    run: str | None
    """Run under which it is listed. None means that it belongs to no run."""
    tasks: str
    """Key of the task set, with a digest of its content if pictures are in files beside its rows."""
    rules: str
    """sha256 of the episodes' rules."""
    playing: Mapping[str, Any]
    """Tasks, number of samples, temperature, limits and seed."""

    def digest(self) -> str:
        return digest_of(asdict(self))[:8]


def directory_of(outputs: Path, requested: EvaluationIdentity, *, again: bool) -> Path:
    """Directory of this evaluation: an existing one, finished or not; a new one with `again`."""
    name = f"{_word(requested.env)}-{_word(str(requested.model['name']))}-{requested.digest()}"
    first = outputs / ROOM / name
    directory = first
    number = 1
    following = first.with_name(f"{name}-2")
    while (following / REQUEST).exists():
        directory = following
        number += 1
        following = first.with_name(f"{name}-{number + 1}")
    # An interrupted evaluation is resumed, also by a command with `again`, but not by code that changed unseen.
    if (again and (directory / RECORD).exists()) or changed(directory / FILE):
        return following
    return directory


@contextmanager
def locked(directory: Path, requested: EvaluationIdentity) -> Iterator[None]:
    """Makes the directory if necessary, and locks it; the lock ends with its process.

    Raises:
        XpError: RUN_DIR if another process holds it.
    """
    with ExitStack() as stack:
        with resource_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            if not stack.enter_context(try_lock(directory / LOCK)):
                raise XpError(f"{directory} is being played by another process", ExitCode.RUN_DIR)
            stack.callback(_remove_unplayed, directory)
            if not (directory / REQUEST).exists():
                value = {"schema_version": SCHEMA_VERSION, **asdict(requested)}
                write_json(directory / REQUEST, value)
        yield


def _is_begun(directory: Path) -> bool:
    """Returns whether an evaluation has an episode or a summary on record."""
    episodes = directory / EPISODES
    return os.path.lexists(directory / RECORD) or (
        episodes.is_file() and episodes.stat().st_size > 0
    )


def _remove_unplayed(directory: Path) -> None:
    """Removes the directory of an evaluation without an episode; an engine's log stays, since messages name it."""
    if _is_begun(directory):
        return
    with suppress(OSError):
        for file in (EPISODES, REQUEST, LOCK):
            (directory / file).unlink(missing_ok=True)
        (directory / EPISODES).parent.rmdir()
    with suppress(OSError):
        directory.rmdir()


def played(directory: Path) -> dict[Number, Mapping[str, Any]]:
    """The recorded episodes; if an episode has several records, the first one."""
    file = directory / EPISODES
    if not file.exists():
        return {}
    records: dict[Number, Mapping[str, Any]] = {}
    try:
        for record in read_trajectories(file):
            records.setdefault((task_of(record), int(record["sample"])), record)
    except (KeyError, TypeError, ValueError) as error:
        raise XpError(f"{file} is not a record of episodes: {error}", ExitCode.RUN_DIR) from None
    return records


def task_of(record: Mapping[str, Any]) -> str:
    """Id of a recorded episode's task."""
    return f"{record['env']}/{record['split']}/{record['index']}"


def recorded_usage(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Input and output tokens of an episode, by the endpoint's count or the tokenizer's, and the cost of its judges."""
    counts = record["tokens"]
    judges = {JUDGES: record["outcome"].get("judges", {}).get("cost_usd", 0.0)}
    if "usage" in record["extra"] or counts is None:
        return {**record["extra"].get("usage", {}), **judges}
    return {
        "prompt_tokens": counts["prompt"] + counts["observed"],
        "completion_tokens": counts["generated"],
        **judges,
    }


def evaluation_directory(outputs: Path, name: str) -> Path | None:
    """Directory of an evaluation by name or path. None means that there is none."""
    directory = Path(name) if "/" in name else outputs / ROOM / name
    if is_name(directory.name) and (directory / REQUEST).is_file():
        return directory
    return None


@dataclass(frozen=True)
class ListedEvaluation:
    """One evaluation below the outputs root."""

    directory: Path
    record: EvaluationRecord | None
    """Its eval.json. None means that it does not exist yet, or is unreadable."""
    fault: str = ""
    """Reason why its eval.json cannot be read. Empty means that it is readable or absent."""


def summaries(outputs: Path) -> list[ListedEvaluation]:
    """Every evaluation with an episode below the outputs root, with its eval.json, oldest first."""
    files = sorted((outputs / ROOM).glob(f"*/{REQUEST}"), key=lambda file: file.lstat().st_mtime)
    return [listed(file.parent) for file in files if _is_begun(file.parent)]


def listed(directory: Path) -> ListedEvaluation:
    """The evaluation in a directory."""
    if not os.path.lexists(directory / RECORD):
        return ListedEvaluation(directory, None)
    try:
        return ListedEvaluation(directory, read_evaluation(directory / RECORD))
    except XpError as error:
        return ListedEvaluation(directory, None, str(error))


def line_of(evaluation: ListedEvaluation) -> str:
    """Line of one evaluation in a list."""
    directory = evaluation.directory
    record = evaluation.record
    if evaluation.fault:
        return f"{directory.name}  unreadable: {evaluation.fault}"
    if record is None:
        return f"{directory.name}  not finished: the same command continues it"
    reward = record.summary.reward
    text = "no reward"
    if reward is not None:
        text = f"{reward.value:.3f}"
        if reward.low is not None:
            text += f" ({reward.low:.3f} to {reward.high:.3f})"
    of = f"{counted(record.summary.num_tasks, 'task')} of {record.env}"
    return f"{directory.name}  {record.status}  {text}  {record.model.name} on {of}"


def _word(text: str) -> str:
    """A text made legal as a part of a directory's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:48] or "x"
