"""Several runs' reward by step on one chart: `python -m benchmarks.curves PICTURE.png NAME=RUN_DIRECTORY ...`.

Runs of one spec on several trainers log the same metrics under the same names, so their curves lie on each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from xp.episode.metrics_file import read_metrics

WINDOW = 6
REWARD = "reward/avg_raw_reward"


def main(argv: Sequence[str]) -> None:
    """Draw the picture and print the table behind it."""
    from matplotlib.figure import Figure

    picture, runs = Path(argv[0]), [text.partition("=")[::2] for text in argv[1:]]
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for number, (name, directory) in enumerate(runs):
        rewards = [line[REWARD] for line in read_metrics(Path(directory, "metrics.jsonl"), "train")]
        steps = range(1, len(rewards) + 1)
        axes.plot(steps, rewards, color=f"C{number}", alpha=0.25, linewidth=1)
        averages = [fmean(rewards[max(0, step - WINDOW) : step]) for step in steps]
        axes.plot(steps, averages, color=f"C{number}", linewidth=2, label=name)
        print(f"| {name} | {_ends(Path(directory))} | {' | '.join(_windows(rewards))} |")
    axes.set_xlabel("rollout step")
    axes.set_ylabel("mean reward per episode")
    axes.set_title(f"Training reward, each step and mean of {WINDOW} steps")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(picture, metadata={"Software": None})


def _windows(rewards: Sequence[float]) -> list[str]:
    starts = range(0, len(rewards), WINDOW)
    return [f"{fmean(rewards[start : start + WINDOW]):.3f}" for start in starts]


def _ends(run: Path) -> str:
    """Held-out reward before and after training, of the last evaluation."""
    file = max(run.glob("attempt_*/evaluate/evaluation.json"))
    results = json.loads(file.read_text())["results"]
    return " | ".join(f"{one['reward_mean']:.3f} ± {one['reward_stderr']:.3f}" for one in results.values())


if __name__ == "__main__":
    main(sys.argv[1:])
