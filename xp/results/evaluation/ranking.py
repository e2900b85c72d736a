"""Compares the settings of several runs: paired by seed if there are several seeds, else task by task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from xp.episode.clusters import Limits, clustered_stderr, within
from xp.errors import XpError
from xp.execution.leaderboard import MAX_SHOWN, RunEntry, text
from xp.lib.text import counted, first_line, shortened
from xp.results.evaluation.paired import PairedComparison, compare, holm
from xp.results.evaluation.results import compare_all
from xp.results.evaluation.settings import default_margin
from xp.results.evaluation.statistics import CONFIDENCE, interval

OPTIONS: Final = ("model", "algorithm", "backend")


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one spec, which differ only by their seeds."""

    label: str
    """The group's values of the keys that differ, as overrides."""
    runs: tuple[RunEntry, ...]
    rewards: Mapping[int, Sequence[float]]
    """Seed -> held-out rewards after training, adjusted by the values before it."""

    @property
    def seeds(self) -> list[float]:
        """The reward of each seed."""
        return [fmean(values) for values in self.rewards.values()]

    @property
    def mean(self) -> float:
        return fmean(self.seeds)

    @property
    def stderr(self) -> float | None:
        """Standard error over seeds. None means that there is one seed."""
        return clustered_stderr([[seed] for seed in self.seeds])


def settings_of(entries: Sequence[RunEntry]) -> list[SeedGroup]:
    """The settings of comparable runs on one environment, highest mean first.

    A reward is adjusted by the difference of its run's value before training from the mean of all; if a run was not
    evaluated before training, none is adjusted.
    """
    scored = [entry for entry in entries if entry.after is not None and entry.ranked_by == "reward"]
    varied = [name for name in OPTIONS if len({getattr(entry, name) for entry in scored}) > 1]
    before = [entry.before for entry in scored if entry.before is not None]
    is_adjusted = len(before) == len(scored)
    groups: dict[str, list[RunEntry]] = {}
    for entry in scored:
        values = {**{name: getattr(entry, name) for name in varied}, **entry.differs}
        label = " ".join(f"{key}={text(value)}" for key, value in values.items())
        groups.setdefault(label, []).append(entry)
    ranked = []
    for words, runs in groups.items():
        rewards: dict[int, list[float]] = {}
        for entry in runs:
            reward = entry.after or 0.0
            if is_adjusted:
                reward += fmean(before) - (entry.before or 0.0)
            rewards.setdefault(entry.seed or 0, []).append(reward)
        ranked.append(SeedGroup(shortened(words, MAX_SHOWN) or runs[0].run, tuple(runs), rewards))
    return sorted(ranked, key=lambda group: -group.mean)


def sentence(outputs: Path, entries: Sequence[RunEntry]) -> str | None:
    """Compares runs on one environment. None means that fewer than two have a held-out reward.

    Args:
        outputs: the outputs root.
        entries: best first.
    """
    scored = [entry for entry in entries if entry.after is not None]
    if len(scored) < 2:
        return None
    reason = scored[0].incomparable
    if reason:
        order = {"passes": "ranked by passes of the environment's own reward"}.get(
            scored[0].ranked_by, "not ranked"
        )
        return f"{order}, without a verdict: the rewards are not on one scale, since {reason}"
    best, *others = settings_of(scored)
    if not others:
        limits: Limits = (None, None)
        if scored[0].result:
            limits = scored[0].result.limits
        what = f"{counted(len(best.rewards), 'seed')} of one spec"
        if len(best.rewards) != len(scored):
            what = f"{len(scored)} runs with {what}"
        return f"{what}: mean held-out reward {best.mean:.3f}{_over_seeds(best, limits)}"
    # A setting is named as the best one only if the test shows it.
    means = f"mean held-out rewards are {others[-1].mean:.3f} to {best.mean:.3f}"
    try:
        pairs = holm([_paired(outputs, other, best) for other in others])
    except XpError as error:
        return f"{means}, without further statistics: {first_line(error)}"
    p_value = pairs[0].p_holm
    text = means
    if p_value is not None and p_value < 1 - CONFIDENCE:
        text = f"{best.label} is highest with {best.mean:.3f}"
    if len(best.seeds) > 1 and all(entry.before is not None for entry in scored):
        text += ", adjusted by the values before training"
    return f"{text}. {pairs[0].verdict}"


def _over_seeds(group: SeedGroup, limits: Limits) -> str:
    if group.stderr is None:
        return ""
    if not group.stderr:
        return ", the same for each"
    low, high = (
        within(value, limits) for value in interval(group.mean, group.stderr, len(group.seeds))
    )
    return f", 95 % {low:.3f} to {high:.3f} over seeds"


def _paired(outputs: Path, other: SeedGroup, best: SeedGroup) -> PairedComparison:
    """Compares the best setting with another one on their common seeds; on one seed task by task.

    Raises:
        XpError: there is no common seed, or the tasks cannot be compared.
    """
    margin = default_margin()
    common = [seed for seed in best.rewards if seed in other.rewards]
    if len(common) > 1:
        first, second = (
            {str(seed): group.rewards[seed] for seed in common} for group in (other, best)
        )
        return compare((other.label, best.label), first, second, 1.0, margin, unit="seed")
    if not common:
        raise XpError(f"no seed of {best.label} was run with {other.label} too")
    runs = [
        next(entry.run for entry in group.runs if entry.seed in (common[0], None))
        for group in (other, best)
    ]
    (paired,) = compare_all(outputs, runs, margin)
    return replace(paired, first=other.label, second=best.label)
