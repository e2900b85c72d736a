"""Pass rates of training tasks from an evaluation, to select tasks that a model can learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.episode.evaluation import RECORD, read_evaluation
from xp.errors import XpError
from xp.lib.codec import JsonFile
from xp.lib.reading import config_of
from xp.tasks.manifest import read_manifest

ROOM: Final = "evaluations"
"""Name of the evaluations' directory below the outputs root."""
LOGGED_ROOM: Final = "profiles"
"""Name of the directory of LoggedRates below the outputs root."""
IDENTITY: Final = (
    "provider",
    "target",
    "serve",
    "image",
    "variant",
    "source",
    "grader",
    "grader_form",
    "grader_args",
    "env_class",
    "rows",
    "columns",
    "num_seeds",
    "options",
)
"""Fields of a member's canonical request that say of which environment a profile is; a member may lack some."""


@dataclass(frozen=True)
class Profile:
    """Pass rates of one split's tasks."""

    model: str
    """Model that was measured, or another source of the rates."""
    num_tries: int
    """Largest number of episodes of any task."""
    rates: Mapping[int, float]
    """Index of a task in its split -> share of passed episodes, from 0 to 1; absent if all episodes were void."""

    def within(self, bounds: tuple[float, float] | None, *, easy_first: bool) -> tuple[int, ...]:
        """Indices of the tasks with rates within the bounds, both included; bounds None: all tasks."""
        low, high = bounds or (0.0, 1.0)
        indices = [index for index, rate in sorted(self.rates.items()) if low <= rate <= high]
        return tuple(
            sorted(indices, key=lambda index: -self.rates[index]) if easy_first else indices
        )

    def counts(self, bounds: tuple[float, float]) -> tuple[int, int, int]:
        """Numbers of tasks below, within and above the bounds."""
        below = sum(rate < bounds[0] for rate in self.rates.values())
        above = sum(rate > bounds[1] for rate in self.rates.values())
        return below, len(self.rates) - below - above, above


@dataclass(frozen=True)
class LoggedRates(JsonFile):
    """Mean rewards of the rollouts that OpenReward has logged, which take the place of pass rates."""

    api: str
    """Origin of the OpenReward API."""
    environment: str
    """`Org/Name` in the catalog."""
    variant: str | None
    split: str
    model: str | None
    """Model of the rollouts. None means any."""
    fetched: str
    """Date and time."""
    rates: Mapping[str, float]
    """Index of a task in its split -> mean reward, from 0 to 1."""
    num_rollouts: Mapping[str, int]

    def profile(self) -> Profile:
        source = (
            f"OpenReward's rollouts of {self.model or 'any model'}, logged until {self.fetched}"
        )
        rates = {int(index): rate for index, rate in self.rates.items()}
        return Profile(source, max(self.num_rollouts.values(), default=0), rates)


def _logged_profile(file: Path, split: str, request: Mapping[str, Any]) -> Profile:
    logged = config_of(file, LoggedRates.from_json)
    expected = (request.get("target"), request.get("variant"), split)
    got = (logged.environment, logged.variant, logged.split)
    if got != expected:
        raise XpError(
            f"{file} is of another environment, variant or split: expected {expected}; got {got}"
        )
    return logged.profile()


def read_profile(outputs: Path, name: str, split: str, request: Mapping[str, Any]) -> Profile:
    """Reads the pass rates of one environment's split.

    Args:
        outputs: the outputs root.
        name: name of the evaluation, or its directory.
        split: the training split.
        request: the environment's part of a canonical request (`xp.tasks.request.canonical_request`).

    Raises:
        XpError: the evaluation does not exist, is not complete, or is of another environment or split.
    """
    logged = outputs / LOGGED_ROOM / f"{name}.json"
    directory = outputs / ROOM / name
    if "/" in name:
        logged = directory = Path(name)
    if logged.suffix == ".json" and logged.is_file():
        return _logged_profile(logged, split, request)
    if not (directory / RECORD).is_file():
        raise XpError(
            f"env.train.profile: there is no evaluation {name} in {directory.parent}: python -m xp tasks profile makes one,"
            " python -m xp eval list shows those that are there"
        )
    evaluation = read_evaluation(directory / RECORD)
    if evaluation.status != "finished":
        raise XpError(f"{directory} is not finished; the same `tasks profile` continues it")
    prefix = f"{_member(outputs, evaluation.task_set or '', request, directory)}/{split}/"
    threshold = evaluation.summary.pass_threshold
    tries = {
        int(task.removeprefix(prefix)): rewards
        for task, rewards in evaluation.rewards.items()
        if task.startswith(prefix)
    }
    shares = {index: pass_share(rewards, threshold) for index, rewards in tries.items()}
    rates = {index: share for index, share in shares.items() if share is not None}
    if not rates:
        raise XpError(
            f"{directory} has no tasks of split {split}: profile the split that is trained on"
            " (python -m xp tasks profile env=... model=...)"
        )
    return Profile(evaluation.model.name, max(map(len, tries.values())), rates)


def _member(outputs: Path, key: str, request: Mapping[str, Any], directory: Path) -> str:
    """Name of this environment in the evaluation."""
    store = outputs / "tasks"
    try:
        members = read_manifest(store / Path(key).name).request["members"]
    except (OSError, ValueError):
        raise XpError(
            f"{directory} was played on task set {key}, which is not in {store}: profile the tasks again"
        ) from None
    for name, other in members.items():
        if all(other.get(field) == request.get(field) for field in IDENTITY):
            return str(name)
    envs = (request, *members.values())
    expected, *others = (
        ", ".join(f"{field} {env[field]}" for field in IDENTITY if env.get(field)) for env in envs
    )
    raise XpError(
        f"{directory} is of another environment, or of another version of its code (`source`): expected {expected};"
        f" got {' and '.join(others)}; profile the tasks again"
    )


def pass_share(rewards: Sequence[float | None], threshold: float) -> float | None:
    """Share of a task's scored episodes with at least this reward. None means that all episodes are void."""
    scored = [reward for reward in rewards if reward is not None]
    if scored:
        return sum(reward >= threshold for reward in scored) / len(scored)
    return None
