"""Makes a task set from the fetched tasks: merges, counts, checks completeness, and publishes it with one rename."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from xp.episode.prompt import prompt_keys
from xp.errors import ExitCode, XpError
from xp.lib.atomic import replacing, sync_directory
from xp.lib.digest import file_digest
from xp.lib.text import counted
from xp.tasks.config import PrepareConfig, Purpose
from xp.tasks.entries import TaskEntry, WorkDirectory
from xp.tasks.held_out import HeldOutRecord
from xp.tasks.manifest import MANIFEST, TABLE, Failure, Manifest, TaskCount
from xp.tasks.picture_files import FILE as PICTURES
from xp.tasks.picture_files import Digests
from xp.tasks.request import canonical_request, identities, request_key
from xp.tasks.row import TaskRow, write_rows
from xp.tasks.selection import SelectedTask

MOST_LISTED = 20
ALL_HELD_OUT = (
    "every one of them is held out as well, by its prompt\nhold out other tasks (env.held_out.split), none"
    " (env.held_out=null), or set env.held_out.overlap=allowed"
)


@dataclass
class _Tally:
    """Counts of one environment and purpose during the merge."""

    tasks: int = 0
    overlapping: int = 0
    prompt_characters: int = 0
    prompts: set[bytes] = field(default_factory=set)
    names: list[Sequence[str]] = field(default_factory=list)
    """Names of the held-out tasks (`_HeldOutNames`)."""


class _HeldOutNames:
    """Recognises held-out tasks among those for training, by the environment's description and by the prompt.

    The prompt counts in all environments. A description or a prompt that all tasks of an environment share recognises
    nothing. The reset seeds of a row are tasks of their own.
    """

    def __init__(
        self, config: PrepareConfig, tasks: Sequence[SelectedTask], work: WorkDirectory
    ) -> None:
        self._members = config.members
        self._environments = identities(config)
        self._distinct: dict[str, set[int]] = {}
        first: dict[str, tuple[str, ...]] = {}
        held_out: list[tuple[str, tuple[str, ...]]] = []
        for task, entry in work.entries(tasks):
            names = self._names(task, entry)
            if task.env in first:
                pairs = enumerate(zip(names, first[task.env], strict=True))
                self._distinct.setdefault(task.env, set()).update(
                    kind for kind, (a, b) in pairs if a != b
                )
            first.setdefault(task.env, names)
            rule = config.members[task.env].env.held_out
            if task.purpose is Purpose.HELD_OUT and rule is not None and not rule.may_overlap:
                held_out.append((task.env, names))
        self._excluded = {
            names[kind]
            for env, names in held_out
            for kind in self._distinct.get(env, range(len(names)))
        }
        self.trained = set[str]()
        """Names of the tasks that are trained on."""

    def _names(self, task: SelectedTask, entry: TaskEntry) -> tuple[str, ...]:
        seed = task.index % self._members[task.env].env.num_seeds
        prompts = (f"{key}/{seed}" for key in prompt_keys(entry.messages))
        return f"{self._environments[task.env]}/{entry.task_hash}", *prompts

    def names(self, task: SelectedTask, entry: TaskEntry) -> Sequence[str]:
        """Identity of a task."""
        names = self._names(task, entry)
        return [names[kind] for kind in self._distinct.get(task.env) or (0,)]

    def is_left_out(self, task: SelectedTask, entry: TaskEntry) -> bool:
        """Returns whether a task is for training, and held out."""
        if task.purpose is not Purpose.TRAIN:
            return False
        names = self._names(task, entry)
        is_held_out = not self._excluded.isdisjoint(names)
        if not is_held_out:
            self.trained.update(names)
        return is_held_out


def merge(
    config: PrepareConfig,
    tasks: Sequence[SelectedTask],
    work: WorkDirectory,
    failures: Sequence[Failure],
    versions: dict[str, str],
    records: Mapping[str, HeldOutRecord],
    pictures: Digests,
) -> Path:
    """Writes table, digests of pictures and manifest into the work directory; returns the one that can be published."""
    directory = work.path / "set"
    directory.mkdir()
    lost = {failure.task_id for failure in failures}
    failed = Counter((task.env, task.purpose) for task in tasks if task.task_id in lost)
    tallies = {(task.env, task.purpose): _Tally() for task in tasks}
    overlap = _HeldOutNames(config, tasks, work)
    with replacing(directory / TABLE) as temporary:
        content_digest = write_rows(temporary, _rows(config, tasks, work, tallies, overlap))
    if pictures:
        with replacing(directory / PICTURES) as temporary:
            temporary.write_text(json.dumps(pictures, indent=1, sort_keys=True), encoding="utf-8")
    counts: dict[str, dict[str, TaskCount]] = {}
    for (env, purpose), tally in tallies.items():
        counts.setdefault(env, {})[purpose] = TaskCount(
            tally.tasks,
            failed[env, purpose],
            tally.overlapping,
            tally.prompt_characters,
            len(tally.prompts),
        )
        if not tally.tasks:
            why = ALL_HELD_OUT if tally.overlapping else "every one of them failed"
            raise XpError(f"env {env}: no task is left for {purpose}: {why}", ExitCode.TASKS)
    manifest = Manifest(
        key=request_key(config),
        request=canonical_request(config),
        environments=versions,
        content_digest=content_digest,
        counts=counts,
        failures=tuple(failures),
        notes=_notes(config, counts, tallies),
        files={file.name: file_digest(file) for file in sorted(directory.iterdir())},
        held_out=_as_built(records, tallies, overlap.trained),
    )
    with replacing(directory / MANIFEST) as temporary:
        temporary.write_text(manifest.to_json(), encoding="utf-8")
    sync_directory(directory)
    return directory


def publish(directory: Path, path: Path, work: WorkDirectory) -> None:
    """Publishes the set with one rename; an older set at its path, which lacked more tasks, is removed."""
    if path.exists():
        os.replace(path, work.path / "replaced")
    os.replace(directory, path)
    sync_directory(path.parent)
    work.clear()


def set_aside(path: Path, reason: str) -> None:
    """Renames a damaged set, so that it is kept for inspection but never used."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    os.replace(path, aside)
    print(
        f"warning: task set {path}: {reason}; moved to {aside.name} and built again",
        file=sys.stderr,
        flush=True,
    )


def judge(
    config: PrepareConfig,
    tasks: Sequence[SelectedTask],
    failures: Sequence[Failure],
    work: WorkDirectory,
) -> None:
    """Raises XpError if too many tasks failed; the full list stays in the work directory."""
    selected = Counter(task.env for task in tasks)
    lost = {failure.task_id for failure in failures}
    failed = Counter(task.env for task in tasks if task.task_id in lost)
    shares = {env: failed[env] / number for env, number in selected.items()}
    if all(share <= config.preparation.allow_missing_fraction for share in shares.values()):
        return
    listing = work.path / "failures.json"
    with replacing(listing) as temporary:
        temporary.write_text(
            json.dumps([asdict(failure) for failure in failures], indent=2) + "\n", encoding="utf-8"
        )
    lines = [f"  {failure.task_id}: {failure.reason}" for failure in failures[:MOST_LISTED]]
    if len(failures) > MOST_LISTED:
        lines.append(f"  and {len(failures) - MOST_LISTED} more, in {listing}")
    worst = max(shares, key=lambda name: shares[name])
    raise XpError(
        f"{counted(len(failures), 'task')} could not be prepared ({shares[worst]:.1%} of environment {worst}):\n"
        + "\n".join(lines)
        + "\nrun the same command again to retry them, or permit some by preparation.allow_missing_fraction "
        f"(now {config.preparation.allow_missing_fraction})",
        ExitCode.TASKS,
    )


def _rows(
    config: PrepareConfig,
    tasks: Sequence[SelectedTask],
    work: WorkDirectory,
    tallies: dict[tuple[str, Purpose], _Tally],
    overlap: _HeldOutNames,
) -> Iterator[TaskRow]:
    for task, entry in work.entries(tasks):
        tally = tallies[task.env, task.purpose]
        if overlap.is_left_out(task, entry):
            tally.overlapping += 1
            continue
        tally.prompts.add(entry.prompt_digest)
        if task.purpose is Purpose.HELD_OUT:
            tally.names.append(overlap.names(task, entry))
        tally.tasks += 1
        tally.prompt_characters += entry.prompt_characters
        yield entry.row(task, config.members[task.env].env.weight)


def _as_built(
    records: Mapping[str, HeldOutRecord],
    tallies: Mapping[tuple[str, Purpose], _Tally],
    trained: Set[str],
) -> dict[str, HeldOutRecord]:
    """The records with numbers from the rows, without tasks that failed or were excluded."""
    built = {}
    for member, record in records.items():
        held_out = tallies.get((member, Purpose.HELD_OUT), _Tally())
        train = tallies.get((member, Purpose.TRAIN), _Tally())
        trained_on = sum(not trained.isdisjoint(names) for names in held_out.names)
        built[member] = replace(
            record, num_held_out=held_out.tasks, num_train=train.tasks, num_trained_on=trained_on
        )
    return built


def _notes(
    config: PrepareConfig,
    counts: dict[str, dict[str, TaskCount]],
    tallies: Mapping[tuple[str, Purpose], _Tally],
) -> tuple[str, ...]:
    notes = []
    for env, purposes in sorted(counts.items()):
        for purpose, count in sorted(purposes.items()):
            if count.tasks > 1 and count.distinct_prompts == 1:
                notes.append(
                    f"{env}: all {count.tasks} {purpose} tasks have the same prompt; "
                    "held-out reward is then measured on what was trained on"
                )
            if count.overlapping:
                notes.append(
                    f"{env}: {count.overlapping} {purpose} tasks were left out, being held out as well"
                )
        held_out, train = (
            tallies.get((env, purpose), _Tally()) for purpose in (Purpose.HELD_OUT, Purpose.TRAIN)
        )
        if config.members[env].env.num_seeds > 1:
            both = held_out.prompts & train.prompts
            if both:
                notes.append(
                    f"{env}: {counted(len(both), 'prompt')} held out with some seeds and trained on with others"
                )
    return tuple(notes)
