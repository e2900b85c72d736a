"""Several runs' reward by step on one chart; runs of the same name (the seeds of one spec) are one curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from xp.results.evaluation.statistics import mean

WINDOW = 6
"""Steps of the moving average."""


def draw(picture: Path, curves: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw one curve a name as PNG: each step thin, the moving average thick.

    Args:
        picture: the file.
        curves: name -> rewards by step of each of its runs. Of several runs, the curve is their mean, and the band
            around its moving average the 95 % interval of the mean over runs (Student's).
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, runs) in enumerate(curves.items()):
        steps = range(1, min(map(len, runs)) + 1)
        axes.plot(
            steps,
            [fmean(run[step - 1] for run in runs) for step in steps],
            f"C{number}",
            alpha=0.25,
            lw=1,
        )
        smooth = [_moving_average(run)[: len(steps)] for run in runs]
        axes.plot(
            steps, [fmean(at) for at in zip(*smooth, strict=True)], f"C{number}", lw=2, label=name
        )
        if len(runs) > 1:
            low, high = zip(*map(_band, zip(*smooth, strict=True)), strict=True)
            axes.fill_between(steps, low, high, color=f"C{number}", alpha=0.15, lw=0)
    axes.set_xlabel("rollout step")
    axes.set_ylabel("mean reward per episode")
    axes.set_title(f"Training reward, each step and mean of {WINDOW} steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(picture, metadata={"Software": None})


def windows(rewards: Sequence[float]) -> list[str]:
    """Mean reward of each `WINDOW` steps."""
    starts = range(0, len(rewards), WINDOW)
    return [f"{fmean(rewards[start : start + WINDOW]):.3f}" for start in starts]


def _moving_average(rewards: Sequence[float]) -> list[float]:
    return [fmean(rewards[max(0, step - WINDOW) : step]) for step in range(1, len(rewards) + 1)]


def _band(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of a mean over runs; of runs that are all alike, the mean twice."""
    found = mean([[value] for value in values])
    assert found is not None  # there is a run
    if found.low is None or found.high is None:
        return found.value, found.value
    return found.low, found.high
