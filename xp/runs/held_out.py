"""Results of a run on the held-out tasks, read from the files of its evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from xp.episode.clusters import Limits, reward_limits
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.reading import LARGEST, check_below, is_count, is_finite, json_of
from xp.runs.record import RunRecord, number_of, read_record
from xp.tasks.held_out import overlap_label

NAMES = ("before", "after")
"""The untrained model and the trained one."""
Scoring = Mapping[str, Mapping[str, Any]]
"""Environment -> what decides its rewards (xp.tasks.request.scoring)."""
CODE: Final = "code of "
MAX_VALUE: Final = 60
"""Largest number of a value's characters in a message."""


@dataclass(frozen=True)
class HeldOutResult:
    """One model's result."""

    reward_mean: float
    reward_stderr: float | None
    """Standard error; None: there is one episode only."""
    perfect_share: float | None
    num_scored: int | None
    num_void: int | None
    pass_share: float | None = None
    """Share of rewards of at least `pass_threshold`."""
    pass_threshold: float | None = None
    num_tasks: int | None = None
    """Number of held-out tasks."""
    label: str = ""
    """Remark if the tasks are trained on as well; else empty."""
    env_pass_share: float | None = None
    """`pass_share` before the user's reward functions."""
    limits: Limits = (None, None)
    """Smallest and largest possible reward."""
    tasks: str | None = None
    """Digest of the tasks and their content; None: not recorded."""
    scoring: Scoring | None = None


@dataclass(frozen=True)
class TaskRewards:
    """Rewards of one model's episodes."""

    rewards: Mapping[str, list[float | None]]
    """Task -> rewards of its episodes; None: void."""
    hashes: Mapping[str, str]
    """Task -> digest of its content."""
    pass_threshold: float
    scoring: Scoring | None


def read_held_out(file: Path) -> dict[str, HeldOutResult]:
    """The results of an evaluation.json; raises XpError(RUN_DIR) for another file."""
    return _checked(file)[0]


def read_rewards(file: Path, which: str) -> TaskRewards | None:
    """Rewards of one model by task, from an evaluation.json; None: the model was not evaluated.

    Args:
        file: the evaluation.json.
        which: `before` or `after`.

    Raises:
        XpError: (RUN_DIR) the file is not an evaluation.json.
    """
    found, rewards = _checked(file)
    if which not in found:
        return None
    if which not in rewards:
        raise XpError(f"{file} has no rewards by task; evaluate the run again with `eval`", ExitCode.RUN_DIR)
    return rewards[which]


def _checked(file: Path) -> tuple[dict[str, HeldOutResult], dict[str, TaskRewards]]:
    """Results of each model, and its rewards by task if they are recorded."""
    value = json_of(file, ExitCode.RUN_DIR)
    try:
        models = _mapping(_mapping(value)["results"])
        own = {name: _mapping(models[name]) for name in NAMES if name in models}
        label = _label(_mapping(value.get("held_out", {})))
        hashes = _hashes(value.get("task_hashes", {}))
        scoring = scoring_of(value.get("scoring"))
        rewards = {
            name: TaskRewards(rewards_by_task(one["tasks"]), hashes, _some(one["pass_threshold"]), scoring)
            for name, one in own.items()
            if "tasks" in one and one.get("pass_threshold") is not None
        }
        limits = reward_limits(
            (one for model in rewards.values() for task in model.rewards.values() for one in task), _limits(scoring)
        )
        results = {
            name: replace(_result(one), label=label, limits=limits, scoring=scoring, tasks=_tasks(rewards.get(name)))
            for name, one in own.items()
        }
        return results, rewards
    except (KeyError, TypeError, ValueError) as error:
        raise XpError(f"{file} is not an evaluation: {type(error).__name__} {error}", ExitCode.RUN_DIR) from None


def rewards_by_task(value: Any) -> dict[str, list[float | None]]:
    """Task -> rewards of its episodes, null for a void one; raises TypeError or ValueError for another value."""
    found: dict[str, list[float | None]] = {}
    for task, rewards in _mapping(value).items():
        if not isinstance(rewards, list):
            raise TypeError("the rewards of a task are not a list")
        found[task] = [_number(one) for one in rewards]
    return found


def scoring_of(value: Any) -> Scoring | None:
    """The record of what decides the rewards; None: not recorded. Raises TypeError for another value."""
    return None if value is None else {name: _mapping(one) for name, one in _mapping(value).items()}


def _limits(scoring: Scoring | None) -> Limits:
    """Limits that the reward rule sets; none for a mixture, or where a reward function follows the rule."""
    members = list((scoring or {}).values())
    if len(members) != 1 or members[0].get("env.reward_fn"):
        return None, None
    return _number(members[0].get("env.reward.minimum")), _number(members[0].get("env.reward.maximum"))


def _tasks(played: TaskRewards | None) -> str | None:
    """Digest of the tasks with their contents; None if a content is not on record."""
    if played is None or not played.rewards.keys() <= played.hashes.keys():
        return None
    return digest_of({task: played.hashes[task] for task in played.rewards})


def scoring_differences(records: Sequence[Scoring | None]) -> dict[str, str]:
    """Parts of several evaluations' scoring that are not the same in all: key -> the key with its values.

    Args:
        records: scoring of each evaluation; None: not recorded, which is no difference.
    """
    known = [one for one in records if one is not None]
    found = {}
    for member in dict.fromkeys(member for one in known for member in one):
        own = [one.get(member, {}) for one in known]
        for key in dict.fromkeys(key for one in own for key in one):
            values = list(dict.fromkeys(json.dumps(one[key]) for one in own if key in one))
            if len(values) > 1:
                shown = "" if key.startswith(CODE) else f" ({' or '.join(value[:MAX_VALUE] for value in values)})"
                found[key] = f"{key}{shown}"
    return found


def is_of_reward_fn(key: str, record: Scoring | None) -> bool:
    """Returns whether a key of `scoring_differences` is about the user's reward functions alone."""
    functions = [member.get("env.reward_fn") for member in (record or {}).values()]
    return key == "env.reward_fn" or any(isinstance(one, dict) and key.removeprefix(CODE) in one for one in functions)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a JSON object where one is expected")
    return value


def _hashes(value: Any) -> dict[str, str]:
    hashes = _mapping(value)
    if not all(isinstance(one, str) for one in hashes.values()):
        raise TypeError("the digest of a task's content is not a text")
    return dict(hashes)


def _label(records: Mapping[str, Any]) -> str:
    num_trained_on, num_held_out = (
        sum(_whole(record[name]) for record in map(_mapping, records.values()))
        for name in ("num_trained_on", "num_held_out")
    )
    return overlap_label(num_trained_on, num_held_out) if num_trained_on else ""


def held_out(run: Path, record: RunRecord | None = None) -> dict[str, HeldOutResult]:
    """The newest result of each model, over a run's attempts. Raises XpError(RUN_DIR) as `read_held_out` does.

    Args:
        run: its directory.
        record: of the run; None: it is read.
    """
    found: dict[str, HeldOutResult] = {}
    for file in evaluation_files(run, record):
        found |= read_held_out(file)
    return found


def evaluation_files(run: Path, record: RunRecord | None = None) -> list[Path]:
    """Every evaluation.json of a run's own model; those of attempts that trained come last, since they are its result.

    An attempt that only evaluated (`evaluate run=RUN`) may have played other tasks. Evaluations of checkpoints are left
    out: a checkpoint's reward is not that of the trained model.

    Raises:
        XpError: (RUN_DIR) a link leads out of the run.
    """
    try:
        record = record or read_record(run)
    except XpError:
        trained: set[str] = set()
    else:
        attempts = [one for one in record.attempts if any(stage.name == "train" for stage in one.stages)]
        trained = {f"attempt_{one.number}" for one in attempts}
    files = list(run.glob("attempt_*/evaluate/evaluation.json"))
    for file in files:
        check_below(file, run, ExitCode.RUN_DIR)
    files = [file for file in files if checkpoint_of(file) is None]
    return sorted(files, key=lambda file: (file.parents[1].name in trained, number_of(file.parents[1])))


def checkpoint_of(file: Path) -> str | None:
    """Path below the outputs root of the checkpoint that an evaluation.json is of; None: of the run's model."""
    try:
        place = _mapping(_mapping(json_of(file, ExitCode.RUN_DIR))["models"])["after"]
    except (XpError, KeyError, TypeError):
        return None
    is_of_a_run = isinstance(place, str) and place.startswith("runs/")
    return place if is_of_a_run and place.split("/")[2:] != ["model"] else None


def _result(value: Mapping[str, Any]) -> HeldOutResult:
    mean = _some(value["reward_mean"])
    found = [value.get(name) for name in ("num_scored", "num_void", "num_tasks")]
    counts = [None if count is None else _whole(count) for count in found]
    stderr, share = _number(value.get("reward_stderr")), _number(value.get("perfect_share"))
    passes, threshold = _number(value.get("pass_share")), _number(value.get("pass_threshold"))
    own = _number(value.get("env_pass_share"))
    return HeldOutResult(mean, stderr, share, counts[0], counts[1], passes, threshold, counts[2], env_pass_share=own)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not is_finite(value):
        raise ValueError(f"a reward is not a number of at most {LARGEST:g}")
    return float(value)


def _some(value: Any) -> float:
    number = _number(value)
    if number is None:
        raise ValueError("a reward is null")
    return number


def _whole(value: Any) -> int:
    if not is_count(value):
        raise ValueError("a number of tasks or episodes is not a whole number")
    return int(value)
