"""Reads the records of evaluations, of a run's stages and of `xp eval`: the results of a run on its held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.episode.clusters import Limits, reward_limits, within
from xp.episode.evaluation import RECORD, Estimate, EvaluationRecord, Figures, read_evaluation
from xp.errors import ExitCode
from xp.execution.record import number_of
from xp.lib.digest import digest_of
from xp.lib.reading import check_below
from xp.tasks.held_out import overlap_label

NAMES = ("before", "after")
"""The untrained model and the trained one."""
ScoreChoice = Mapping[str, Mapping[str, Any]]
"""Environment -> what decides its rewards (xp.tasks.request.scoring)."""
CODE: Final = "code of "
MAX_VALUE: Final = 60
"""Largest number of a value's characters in a message."""
AFTER_THE_RULE: Final = (
    "env.reward_fn",
    "env.group_reward_fn",
    "env.group_score_weight",
    "env.judge",
)
"""Keys of a scoring that change rewards after the environment's own rule."""


class HeldOutResult(Figures):
    """One model's figures, of which an episode is scored; without the rewards of each task, since there may be many
    runs."""

    reward: Estimate
    passes: Estimate
    label: str = ""
    """Remark if the tasks are trained on as well; else empty."""
    limits: Limits = (None, None)
    """Smallest and largest possible reward."""
    tasks: str | None = None
    """Digest of the tasks and their content."""
    scoring: ScoreChoice | None = None

    @property
    def reward_mean(self) -> float:
        return self.reward.value

    @property
    def reward_stderr(self) -> float | None:
        """Standard error. None means that there is one task only."""
        return self.reward.stderr

    @property
    def pass_share(self) -> float:
        """Share of rewards of at least `pass_threshold`."""
        return self.passes.value


def _result(record: EvaluationRecord) -> HeldOutResult | None:
    """The result in a record. None means that every episode is void."""
    if record.summary.reward is None or record.summary.passes is None:
        return None
    rewards = [reward for task in record.rewards.values() for reward in task]
    return HeldOutResult.model_construct(
        **vars(record.summary),
        label=_label(record),
        limits=reward_limits(rewards, _limits(record.scoring)),
        tasks=digest_of({task: played.hash for task, played in record.tasks.items()}),
        scoring=record.scoring,
    )


def _label(record: EvaluationRecord) -> str:
    overlaps = record.held_out.values()
    num_trained_on = sum(overlap.num_trained_on for overlap in overlaps)
    if num_trained_on:
        return overlap_label(num_trained_on, sum(overlap.num_held_out for overlap in overlaps))
    return ""


def _limits(scoring: ScoreChoice) -> Limits:
    """Limits of the rewards that were scored so; none for a mixture."""
    members = list(scoring.values())
    if len(members) == 1:
        return limits_of(members[0])
    return None, None


def limits_of(member: Mapping[str, Any]) -> Limits:
    """Limits of an environment's rewards by its reward rule and its grader; none where anything follows the rule.

    Args:
        member: its recorded scoring.
    """
    if any(member.get(key) for key in AFTER_THE_RULE):
        return None, None
    rule = member.get("env.reward.minimum"), member.get("env.reward.maximum")
    if not str(member.get("env.grader")).startswith("xp.envs.builtin."):
        return rule
    # xp's own graders give 0 to 1; an episode that they did not see has 0, or what the rule appends.
    unseen = member.get("env.reward.nonterminal") or 0.0
    return within(min(0.0, unseen), rule), within(max(1.0, unseen), rule)


def scoring_differences(records: Sequence[ScoreChoice | None]) -> dict[str, str]:
    """Parts of several evaluations' scoring that are not the same in all: key -> the key with its values.

    Args:
        records: scoring of each evaluation. None means that it is not recorded, which does not count as a difference.
    """
    known = [record for record in records if record is not None]
    differences = {}
    for member in dict.fromkeys(member for result in known for member in result):
        parts = [result.get(member, {}) for result in known]
        for key in dict.fromkeys(key for part in parts for key in part):
            values = list(dict.fromkeys(json.dumps(part[key]) for part in parts if key in part))
            if len(values) > 1:
                differences[key] = key
                if not key.startswith(CODE):
                    shown = " or ".join(value[:MAX_VALUE] for value in values)
                    differences[key] += f" ({shown})"
    return differences


def is_of_reward_fn(key: str, record: ScoreChoice | None) -> bool:
    """Returns whether a key of `scoring_differences` is about reward functions and rewards of groups alone."""
    members = list((record or {}).values())
    code = {*(name for member in members for name in member.get("env.reward_fn") or ())}
    code |= {member.get("env.group_reward_fn") for member in members}
    return key in AFTER_THE_RULE or key.removeprefix(CODE) in code


def held_out(run: Path) -> dict[str, HeldOutResult]:
    """The newest result of each model, over a run's attempts; raises XpError(RUN_DIR) as `read_evaluation` does."""
    files = evaluation_files(run)
    results = {name: _result(read_evaluation(file)) for name, file in files.items()}
    return {name: result for name, result in results.items() if result is not None}


def evaluation_files(run: Path) -> dict[str, Path]:
    """Model (`before`, `after`) -> its newest record in a run; raises XpError(RUN_DIR) if a link leads out of it."""
    files = {}
    for name in NAMES:
        for file in sorted(
            run.glob(f"attempt_*/evaluate/{name}/{RECORD}"),
            key=lambda file: number_of(file.parents[2]),
        ):
            check_below(file, run, ExitCode.RUN_DIR)
            files[name] = file
    return files
