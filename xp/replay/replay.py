"""Does a recorded run again, at levels from its jobs to its result, and tells where it is not the same.

The levels are LEVELS; each is checked by itself, so that the first one that differs shows the cause.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from xp.episode.auto_dialect import resolved
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus, Tokens
from xp.episode.rewards import RewardStep
from xp.episode.trajectory import own_turns, trajectory
from xp.errors import ExitCode, XpError
from xp.evaluation.results import compare_named, of_run
from xp.lib.reading import json_of
from xp.lib.text import counted
from xp.lib.verified import DIGESTS
from xp.planning.episode import episode_config, episode_environ
from xp.planning.plan import build_again
from xp.planning.stages import prepare_config
from xp.replay.metrics import first_metric, first_tensor
from xp.replay.recorded import RecordedRun
from xp.report.episodes import EpisodeIndex
from xp.run_records.lock import changed_keys, read_lock
from xp.spec import DType, RunSpec
from xp.tasks.prepare import prepare
from xp.tasks.row import TaskRow
from xp.tasks.store import BrokenSet, TaskSet, prove

LEVELS: Final = {
    "a": "the jobs are the same bytes",
    "b": "the task set is the same, fetched again",
    "c": "recorded episodes, played again, have the same results and rewards",
    "d": "a training on the CPU has the same numbers, bit for bit",
    "e": "the held-out reward is equivalent",
}
MOST_LINES: Final = 10
"""Largest number of differences that a level names; the others are counted."""


class Outcome(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    """An equivalence test with too few tasks."""
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Level:
    """Result of one level."""

    level: str
    verdict: Outcome
    summary: str
    differences: tuple[str, ...] = ()


def _level(level: str, same: str, lines: Sequence[str]) -> Level:
    if not lines:
        return Level(level, Outcome.SAME, same)
    if len(lines) > MOST_LINES:
        more = [f"and {len(lines) - MOST_LINES} more"]
    else:
        more = []
    return Level(
        level, Outcome.DIFFERS, counted(len(lines), "difference"), (*lines[:MOST_LINES], *more)
    )


def check_jobs(recorded: RecordedRun) -> Level:
    """Level a: plans the run again, and compares argv, files, variables and resources of every stage."""
    before = _plan(recorded)
    names = [stage["name"] for stage in before["stages"]]
    again = build_again(recorded.spec, before["run_id"], before["attempt"], names).to_json()
    for old, new in recorded.moved.items():
        again = again.replace(json.dumps(new)[1:-1], json.dumps(old)[1:-1])
    after = json.loads(again)
    lines = list(changed_keys(_stages(before), _stages(after)))
    return _level("a", f"{counted(len(names), 'job')} of {', '.join(names)}", lines)


def _plan(recorded: RecordedRun) -> Any:
    place = recorded.records / f"attempt_{read_lock(recorded.records).attempt}" / "plan.json"
    return json_of(place, ExitCode.RUN_DIR, below=recorded.records)


def _stages(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The stages by name, with JSON files as values, so that a difference is named by its key."""
    stages = {}
    for stage in plan["stages"]:
        files = {name: _value(text) for name, text in stage["job"]["files"].items()}
        stages[stage["name"]] = {**stage, "job": {**stage["job"], "files": files}}
    return stages


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_tasks(recorded: RecordedRun, scratch: Path) -> tuple[Level, TaskSet]:
    """Level b: fetches the tasks again into a store of its own, and compares them with the recorded ones.

    Returns:
        The result, and the recorded set, or the new one if the recorded one is not here.
    """
    config = replace(prepare_config(recorded.spec), store="tasks")
    new = prepare(config, episode_environ(recorded.spec), scratch)
    expected = read_lock(recorded.records).facts.get("tasks.content", "")
    key = Path(_plan(recorded)["stages"][0]["job"]["outputs"][0]).parent
    stored = None
    for root in (recorded.records, Path(recorded.spec.outputs)):
        with suppress(BrokenSet, OSError):
            stored = stored or prove(root / key)
    lines = []
    if stored is not None and expected and stored.manifest.content_digest != expected:
        lines.append(f"{stored.path}: the stored set is not the one of the lock")
    if new.manifest.content_digest != (expected or (stored and stored.manifest.content_digest)):
        lines += (
            list(_differing_tasks(stored, new))
            if stored
            else ["the recorded set is not here: digests differ"]
        )
    size = counted(sum(1 for _ in new.rows()), "task")
    return _level("b", f"{size}, digest {new.manifest.content_digest[:12]}", lines), stored or new


def _differing_tasks(before: TaskSet, after: TaskSet) -> Iterator[str]:
    first, second = ({row.task_id: row for row in one.rows()} for one in (before, after))
    for task in dict.fromkeys([*first, *second]):
        one = first.get(task)
        other = second.get(task)
        if one is None or other is None:
            yield f"{task}: {'new' if one is None else 'missing'}"
        elif one != other:
            yield f"{task}: another {', '.join(key for key in vars(one) if vars(one)[key] != vars(other)[key])}"


def check_episodes(recorded: RecordedRun, tasks: TaskSet, most: int) -> Level:
    """Level c: gives the environment the recorded turns of the model again.

    An episode that differs is played once more: if both replays differ, the environment is not deterministic.

    Args:
        recorded: the run.
        tasks: its tasks.
        most: largest number of episodes, which are spread over the run.
    """
    index = EpisodeIndex(recorded.records)
    index.refresh()
    numbers = [number for number, row in enumerate(index.rows) if row.status != EpisodeStatus.VOID]
    if not numbers:
        return Level("c", Outcome.NOT_CHECKED, "no recorded episode is here")
    numbers = numbers[:: -(-len(numbers) // most)]
    rows = {row.task_id: row for row in tasks.rows()}
    stage = recorded.records / f"attempt_{read_lock(recorded.records).attempt}" / "train"
    lines = []
    unsteady = 0
    config = resolved(episode_config(recorded.spec), stage)
    with EnvironmentMixture(config, episode_environ(recorded.spec)) as mix:
        for number, record in zip(numbers, index.records(numbers), strict=True):
            task = index.rows[number].task
            if task in rows:
                first = _played(mix, rows[task], record)
            else:
                first = None
            difference = (
                "its task is not in the set"
                if first is None
                else _difference(_fields(record), first)
            )
            if difference and first is not None:
                is_unsteady = _difference(first, _played(mix, rows[task], record)) is not None
                unsteady += is_unsteady
                if is_unsteady:
                    difference += "; a second replay differs from the first"
            if difference:
                lines.append(f"{record['phase']} {task}, sample {record['sample']}: {difference}")
    if unsteady:
        lines.insert(
            0,
            f"the environment is not deterministic: {counted(unsteady, 'episode')} differ between replays",
        )
    return _level("c", f"{counted(len(numbers), 'episode')} of {len(index.rows)}", lines)


def _played(mix: EnvironmentMixture, row: TaskRow, record: Mapping[str, Any]) -> dict[str, Any]:
    episode = mix.episode(row)
    if record["tokens"] is not None:
        tokens = Tokens(**record["tokens"])
        episode.count_by(lambda: tokens)
    for at in own_turns(record["messages"], record["outcome"]["num_turns"]):
        episode.step(record["messages"][at]["content"])
    episode.settle()
    played = trajectory(episode, run="", phase="", step=0, sample=0, tools="[]")
    return _fields(json.loads(played.to_line()))


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of an episode that a replay must reproduce: messages, results of calls and rewards."""
    fields = {f"message {number}": message for number, message in enumerate(record["messages"])}
    fields |= {
        f"result {number}": call.get("result") for number, call in enumerate(record["tool_calls"])
    }
    outcome = record["outcome"]
    fields |= {key: outcome[key] for key in ("void_reason", "step_rewards", "metrics")}
    # The steps of a group and of a training's length are not replayed.
    return fields | {
        f"reward after {step}": outcome["reward_steps"].get(step)
        for step in (RewardStep.REDUCE, RewardStep.REWARD_FN, RewardStep.JUDGE)
    }


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            return f"{key}: {_short(before.get(key))} -> {_short(after.get(key))}"
    return None


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "content" in value:
        text = value["content"]
    else:
        text = value
    return f"{text!r:.80}"


def why_not_bitwise(spec: RunSpec) -> str | None:
    """Returns why two trainings of a spec need not have the same bits; None if they must."""
    if spec.backend.name != "trl":
        return f"backend={spec.backend.name}"
    if (
        spec.hardware.accelerator != "cpu"
        or spec.hardware.accelerators_per_node * spec.hardware.num_nodes > 1
    ):
        return "it is not one process on a CPU"
    if spec.model.dtype is not DType.FLOAT32:
        return f"model.dtype={spec.model.dtype}"
    if spec.training.max_staleness:
        return "training.max_staleness: rollouts and updates run at the same time"
    return None


def check_numbers(recorded: RecordedRun, run: Path) -> Level:
    """Level d: compares every metric of every step, and the trained weights, with those of a new run."""
    num_values, difference = first_metric(recorded.records / "metrics.jsonl", run / "metrics.jsonl")
    lines = [] if difference is None else [difference]
    tensor = first_tensor(recorded.records / "model", run / "model")
    if tensor is not None:
        lines.append(tensor)
    has_weights = (recorded.records / "model" / DIGESTS).is_file()
    if has_weights:
        weights = "the weights"
    else:
        weights = "no weights, which are not here"
    return _level("d", f"{counted(num_values, 'number')} and {weights}", lines)


def check_result(recorded: RecordedRun, run: Path, margin: float) -> Level:
    """Level e: a test of equivalence of the held-out rewards, task by task."""
    try:
        pair = compare_named(
            of_run(recorded.records, recorded.name, "after"), of_run(run, run.name, "after"), margin
        )
    except XpError as error:
        return Level("e", Outcome.NOT_CHECKED, str(error).partition("\n")[0])
    verdict = Outcome.UNDECIDED
    if pair.p_equivalent is not None and pair.p_equivalent < 0.05:
        verdict = Outcome.SAME
    elif pair.p_value is not None and pair.p_value < 0.05:
        verdict = Outcome.DIFFERS
    return Level("e", verdict, f"margin {margin:g}: {pair.verdict}")
