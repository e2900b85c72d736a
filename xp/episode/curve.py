"""The reward curve of a run as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xp.episode.metrics_file import read_metrics

WINDOW = 5
"""Steps of the moving average."""


def draw_curve(metrics: Path, results: Mapping[str, Mapping[str, Any]], target: Path) -> None:
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
    for name, colour, offset in (("before", "C1", (8, -12)), ("after", "C2", (-72, -16))):
        if name in results:
            mean, error = results[name]["reward_mean"], results[name]["reward_stderr"] or 0.0
            axes.errorbar([ends[name]], [mean], yerr=[error], fmt="o", color=colour, capsize=3)
            axes.annotate(f"{name}: {mean:.3f}", (ends[name], mean), textcoords="offset points", xytext=offset)
    axes.set_xlabel("rollout step")
    axes.set_ylabel("mean reward per episode")
    axes.set_title("Reward, and held-out reward before and after training")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(target, metadata={"Software": None})


def _moving_average(values: list[float]) -> list[float]:
    return [sum(values[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW) for i in range(len(values))]
