"""Continues an interrupted sweep: the records of a point's runs decide whether it is skipped, resumed or run.

`sweeps/NAME.json` only names the runs of a sweep, for listings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.execution.detached import current
from xp.execution.leaderboard import INCIDENTAL, leaderboard
from xp.execution.lock import has_same_data
from xp.execution.record import RunStatus, is_held, is_ours
from xp.execution.run_directory import resource_errors
from xp.lib.atomic import write_atomically
from xp.lib.codec import JsonFile
from xp.lib.digest import text_digest
from xp.lib.models.clock import CLOCK
from xp.lib.reading import config_of
from xp.spec import RunSpec

SWEEPS: Final = "sweeps"
"""Directory below the outputs root."""


@dataclass(frozen=True)
class SweepRecord(JsonFile):
    """A sweep's command and runs."""

    name: str
    words: tuple[str, ...]
    """Overrides of the command."""
    runs: tuple[str, ...]


def write_sweep(outputs: Path, words: Sequence[str], runs: Sequence[str]) -> None:
    """Records a sweep; the same command again adds its runs."""
    name = text_digest("\n".join(sorted(words)))[:8]
    file = outputs / SWEEPS / f"{name}.json"
    known = next((sweep.runs for sweep in read_sweeps(outputs) if sweep.name == name), ())
    with resource_errors(file.parent):
        write_atomically(
            file, SweepRecord(name, tuple(words), tuple(dict.fromkeys((*known, *runs)))).to_json()
        )


def read_sweeps(outputs: Path) -> list[SweepRecord]:
    """The readable records of sweeps."""
    sweeps = []
    for file in sorted((outputs / SWEEPS).glob("*.json")):
        with suppress(XpError):
            sweeps.append(config_of(file, SweepRecord.from_json, below=file.parent))
    return sweeps


class RunState(StrEnum):
    """State of a spec's run."""

    CUT = "cut"
    """Stopped, killed or failed; the next attempt continues from its checkpoint."""
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class SweepEntry:
    """An earlier run of a spec."""

    standing: RunState
    run_id: str
    num_attempts: int


@dataclass(frozen=True)
class OpenPoint:
    """One point that a sweep has to run."""

    run_id: str | None
    """Run to be resumed. None means a new run."""
    attempt: int
    number: int
    """Index among the specs of the sweep."""


def spec_digest(spec: Mapping[str, Any]) -> str:
    """Digest of all fields that determine a run's result.

    Args:
        spec: a dumped RunSpec, as in a run's `spec.yaml`.
    """
    content = json.loads(
        json.dumps({name: value for name, value in spec.items() if name not in INCIDENTAL})
    )
    # A sweep may be continued on another day.
    content.get("model", {}).get("chat_template", {}).pop(CLOCK, None)
    return text_digest(json.dumps(content, sort_keys=True))


def ledger(outputs: Path) -> dict[str, SweepEntry]:
    """Digest of a spec -> the state of its runs below the outputs root; if there are several, of the furthest one."""
    order = list(RunState)
    entries = filter(None, map(_read, sorted((outputs / "runs").glob("*/spec.yaml"))))
    return dict(sorted(entries, key=lambda entry: order.index(entry[1].standing)))


def open_points(
    specs: Sequence[RunSpec], *, again: bool
) -> tuple[list[OpenPoint], list[SweepEntry]]:
    """Points of a sweep that must still run, and those that are skipped because they are done or running.

    Args:
        specs: all points.
        again: whether every point runs again, even if it is done.
    """
    if again:
        return [OpenPoint(None, 1, number) for number in range(len(specs))], []
    ledgers = {outputs: ledger(Path(outputs)) for outputs in {spec.outputs for spec in specs}}
    todo = []
    left = []
    for number, spec in enumerate(specs):
        entry = ledgers[spec.outputs].get(spec_digest(spec.model_dump(mode="json")))
        if entry is None:
            todo.append(OpenPoint(None, 1, number))
        elif entry.standing is RunState.CUT:
            todo.append(OpenPoint(entry.run_id, entry.num_attempts + 1, number))
        else:
            left.append(entry)
    return todo, left


def held_out_reward(spec: RunSpec) -> float:
    """Held-out reward of a spec's finished run, after training. Raises XpError if there is none."""
    outputs = Path(spec.outputs)
    entry = ledger(outputs).get(spec_digest(spec.model_dump(mode="json")))
    if entry is None or entry.standing is not RunState.DONE:
        raise XpError(
            "the run is not finished, so it has no held-out reward yet; a search needs a launcher that waits",
            ExitCode.STAGE_FAILED,
        )
    reward = leaderboard(outputs, [entry.run_id])[0].after
    if reward is None:
        reason = "has no evaluation after training: its held-out reward is unknown"
        raise XpError(f"{entry.run_id} {reason}", ExitCode.STAGE_FAILED)
    return reward


def _read(file: Path) -> tuple[str, SweepEntry] | None:
    from xp.lib.reading import recorded_spec

    if not is_ours(file.parent):
        return None  # another user's run, or a copy
    try:
        record = current(file.parent)
        spec = recorded_spec(file)
        if not has_same_data(file.parent, spec):
            return None  # the same spec is another run now
    except XpError:
        return None  # the run cannot be resumed
    standing = RunState.CUT
    is_detached = record.status is RunStatus.RUNNING and record.attempts[-1].supervisor is None
    if record.status is RunStatus.SUCCEEDED:
        standing = RunState.DONE
    elif is_detached or is_held(file.parent):
        standing = RunState.RUNNING
    return spec_digest(spec), SweepEntry(standing, record.run_id, len(record.attempts))
