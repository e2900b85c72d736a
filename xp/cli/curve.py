"""Draws the reward curve of a run as a picture; commands call it, stages do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from xp.episode.metrics_file import read_metrics
from xp.errors import XpError
from xp.lib.atomic import replacing
from xp.lib.packages import require
from xp.run_records.held_out import HeldOutResult, read_held_out

WINDOW = 5
"""Number of steps of the moving average."""
PICTURE = "reward_curve.png"


def picture_of(run: Path, evaluation: Path, warn: Callable[[str], None]) -> Path | None:
    """Draws the reward curve beside an evaluation, unless it exists; returns None, with a warning, if that fails.

    Args:
        run: the run's directory, which holds metrics.jsonl.
        evaluation: its evaluation.json.
        warn: receives one sentence.
    """
    target = evaluation.with_name(PICTURE)
    if target.exists():
        return target
    if not (run / "metrics.jsonl").is_file():
        warn("no reward curve: the run has no metrics.jsonl")
        return None
    try:
        require("the reward curve", "matplotlib")
        draw_curve(run / "metrics.jsonl", read_held_out(evaluation), target)
    except Exception as error:  # a missing library, a full disk, odd metrics: the run is complete without its picture
        warn(f"no reward curve: {error if isinstance(error, XpError) else f'{type(error).__name__}: {error}'}")
        return None
    return target


def draw_curve(metrics: Path, results: Mapping[str, HeldOutResult], target: Path) -> None:
    """Draw training reward by step, its moving average, and the held-out reward before and after training (PNG)."""
    from matplotlib.figure import Figure

    lines = [line for line in read_metrics(metrics, "train") if line.get("reward/avg_raw_reward") is not None]
    steps = [line["step"] for line in lines]
    rewards = [line["reward/avg_raw_reward"] for line in lines]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, rewards, color="0.75", linewidth=1, label="training, each step")
    axes.plot(steps, _moving_average(rewards), color="C0", linewidth=2, label=f"training, mean of {WINDOW} steps")
    ends = {"before": 0, "after": steps[-1] if steps else 0}
    for name, colour, offset in (("before", "C1", (8, 6)), ("after", "C2", (-72, -20))):
        if name in results:
            mean, error = results[name].reward_mean, results[name].reward_stderr or 0.0
            axes.errorbar([ends[name]], [mean], yerr=[error], fmt="o", color=colour, capsize=3)
            axes.annotate(
                f"{name}: {mean:.3f}",
                (ends[name], mean),
                textcoords="offset points",
                xytext=offset,
                backgroundcolor="#ffffffc0",
            )
    axes.set_xlabel("rollout step")
    axes.set_ylabel("mean reward per episode")
    axes.set_title("Reward, and held-out reward before and after training")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    with replacing(target) as unfinished:
        figure.savefig(
            unfinished, format="png", metadata={"Software": None, "Description": f"{ends['after']} rollout steps"}
        )


def _moving_average(values: list[float]) -> list[float]:
    return [sum(values[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW) for i in range(len(values))]
