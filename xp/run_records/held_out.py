"""Results of a run on the held-out tasks, read from the files of its evaluations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xp.episode.clusters import Limits, reward_limits, within
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.reading import LARGEST, MAX_COUNT, check_below, text_of
from xp.run_records.record import RunRecord, number_of, read_record
from xp.tasks.held_out import overlap_label

NAMES = ("before", "after")
"""The untrained model and the trained one."""
ScoreChoice = Mapping[str, Mapping[str, Any]]
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
    scoring: ScoreChoice | None = None


@dataclass(frozen=True)
class TaskRewards:
    """Rewards of one model's episodes."""

    rewards: Mapping[str, list[float | None]]
    """Task -> rewards of its episodes; None: void."""
    hashes: Mapping[str, str]
    """Task -> digest of its content."""
    pass_threshold: float
    scoring: ScoreChoice | None


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class _Part(BaseModel):
    """A part of an evaluation.json; keys that are not read here are not looked at."""

    model_config = ConfigDict(strict=True)


class _Model(_Part):
    reward_mean: Number
    reward_stderr: Number | None = None
    perfect_share: Number | None = None
    num_scored: Count | None = None
    num_void: Count | None = None
    pass_share: Number | None = None
    pass_threshold: Number | None = None
    num_tasks: Count | None = None
    env_pass_share: Number | None = None
    tasks: dict[str, list[Number | None]] | None = None


class _Overlap(_Part):
    num_trained_on: Count
    num_held_out: Count


class _Evaluation(_Part):
    results: dict[str, _Model]
    held_out: dict[str, _Overlap] = {}
    task_hashes: dict[str, str] = {}
    scoring: dict[str, dict[str, Any]] | None = None
    models: dict[str, Any] = {}


def read_held_out(file: Path) -> dict[str, HeldOutResult]:
    """The results of an evaluation.json; raises XpError(RUN_DIR) for another file."""
    evaluation = _read(file)
    overlaps = evaluation.held_out.values()
    num_trained_on = sum(one.num_trained_on for one in overlaps)
    label = overlap_label(num_trained_on, sum(one.num_held_out for one in overlaps)) if num_trained_on else ""
    rewards = [one for model in evaluation.results.values() for task in (model.tasks or {}).values() for one in task]
    try:
        limits = reward_limits(rewards, _limits(evaluation.scoring))
    except ValueError as error:
        raise XpError(f"{file} is not an evaluation: {error}", ExitCode.RUN_DIR) from None
    return {
        name: HeldOutResult(
            **model.model_dump(exclude={"tasks"}),
            label=label,
            limits=limits,
            scoring=evaluation.scoring,
            tasks=_digest(model.tasks, evaluation.task_hashes),
        )
        for name in NAMES
        if (model := evaluation.results.get(name)) is not None
    }


def read_rewards(file: Path, which: str) -> TaskRewards | None:
    """Rewards of one model by task, from an evaluation.json; None: the model was not evaluated.

    Args:
        file: the evaluation.json.
        which: `before` or `after`.

    Raises:
        XpError: (RUN_DIR) the file is not an evaluation.json.
    """
    evaluation = _read(file)
    if (model := evaluation.results.get(which)) is None:
        return None
    if model.tasks is None or model.pass_threshold is None:
        raise XpError(f"{file} has no rewards by task; evaluate the run again with `eval`", ExitCode.RUN_DIR)
    return TaskRewards(model.tasks, evaluation.task_hashes, model.pass_threshold, evaluation.scoring)


def _read(file: Path) -> _Evaluation:
    try:
        return _Evaluation.model_validate_json(text_of(file, ExitCode.RUN_DIR))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise XpError(f"{file} is not an evaluation: {where}: {first['msg']}", ExitCode.RUN_DIR) from None


def _limits(scoring: ScoreChoice | None) -> Limits:
    """Limits of the rewards that were scored so; none for a mixture."""
    members = list((scoring or {}).values())
    return limits_of(members[0]) if len(members) == 1 else (None, None)


def limits_of(member: Mapping[str, Any]) -> Limits:
    """Limits of an environment's rewards by its reward rule and its grader; none where anything follows the rule.

    Args:
        member: its recorded scoring.
    """
    if any(member.get(key) for key in AFTER_THE_RULE):
        return None, None
    rule = member.get("env.reward.minimum"), member.get("env.reward.maximum")
    if not str(member.get("env.grader")).startswith("xp.builtin."):
        return rule
    # xp's own graders give 0 to 1; an episode that they did not see has 0, or what the rule appends.
    unseen = member.get("env.reward.nonterminal") or 0.0
    return within(min(0.0, unseen), rule), within(max(1.0, unseen), rule)


def _digest(rewards: Mapping[str, Any] | None, hashes: Mapping[str, str]) -> str | None:
    """Digest of the tasks with their contents; None if a content is not on record."""
    if rewards is None or not rewards.keys() <= hashes.keys():
        return None
    return digest_of({task: hashes[task] for task in rewards})


def scoring_differences(records: Sequence[ScoreChoice | None]) -> dict[str, str]:
    """Parts of several evaluations' scoring that are not the same in all: key -> the key with its values.

    Args:
        records: scoring of each evaluation; None: not recorded, which is no difference.
    """
    known = [one for one in records if one is not None]
    differences = {}
    for member in dict.fromkeys(member for one in known for member in one):
        parts = [one.get(member, {}) for one in known]
        for key in dict.fromkeys(key for one in parts for key in one):
            values = list(dict.fromkeys(json.dumps(one[key]) for one in parts if key in one))
            if len(values) > 1:
                shown = "" if key.startswith(CODE) else f" ({' or '.join(value[:MAX_VALUE] for value in values)})"
                differences[key] = f"{key}{shown}"
    return differences


AFTER_THE_RULE: Final = ("env.reward_fn", "env.group_reward_fn", "env.group_score_weight", "env.judge")
"""Keys of a scoring that change rewards after the environment's own rule."""


def is_of_reward_fn(key: str, record: ScoreChoice | None) -> bool:
    """Returns whether a key of `scoring_differences` is about reward functions and rewards of groups alone."""
    members = list((record or {}).values())
    code = {*(name for one in members for name in one.get("env.reward_fn") or ())}
    code |= {one.get("env.group_reward_fn") for one in members}
    return key in AFTER_THE_RULE or key.removeprefix(CODE) in code


def held_out(run: Path, record: RunRecord | None = None) -> dict[str, HeldOutResult]:
    """The newest result of each model, over a run's attempts. Raises XpError(RUN_DIR) as `read_held_out` does.

    Args:
        run: its directory.
        record: of the run; None: it is read.
    """
    results: dict[str, HeldOutResult] = {}
    for file in evaluation_files(run, record):
        results |= read_held_out(file)
    return results


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
    tuned = None if trained else f"runs/{run.name}/sft"  # the model of a run that only fine-tunes
    files = [file for file in files if checkpoint_of(file) in (None, tuned)]
    return sorted(files, key=lambda file: (file.parents[1].name in trained, number_of(file.parents[1])))


def checkpoint_of(file: Path) -> str | None:
    """Path below the outputs root of the checkpoint that an evaluation.json is of; None: of the run's model."""
    try:
        place = _read(file).models.get("after")
    except XpError:
        return None
    if not isinstance(place, str) or not place.startswith("runs/"):
        return None
    return None if place.split("/")[2:] == ["model"] else place
