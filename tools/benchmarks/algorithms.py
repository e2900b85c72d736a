"""`make algorithms`: does each algorithm learn the embedded default? Held-out reward before and after, on two seeds.

Runs that are finished are read, cut ones resumed, the others run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.benchmarks.equivalence import numbers, sweep_words
from tools.benchmarks.sweeps import TrainedRun, sweep, trained_runs
from xp.errors import XpError

LEAST: Final = 0.2
"""Held-out reward that an algorithm must gain on every seed."""
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "grpo": (),
    "dr_grpo": (),
    "rloo": (),
    "dapo": (),
    "gspo": (),
    "cispo": (),
    "reinforce_pp": (),
    "ppo": ("algorithm.critic.gae_lambda=1.0",),
}
"""Algorithm -> what its runs have besides the embedded default.

A critic that begins with nothing gives the reward of the last turn no way back to the first tokens at 0.95.
"""


def gain(run: TrainedRun) -> float:
    """Held-out reward gained by training."""
    return run.after.reward_mean - run.before.reward_mean


def table(runs: Mapping[str, Sequence[TrainedRun]]) -> str:
    """Markdown: a line for each run."""
    lines = [
        "| algorithm | settings besides the default's | seed | held-out before | after | gain | first to last step |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, own in runs.items():
        for run in own:
            ends = [
                f"{one.reward_mean:.3f} ± {one.reward_stderr or 0.0:.3f}"
                for one in (run.before, run.after)
            ]
            settings = ", ".join(f"`{word}`" for word in SETTINGS[name]) or "none"
            curve = f"{run.rewards[0]:.3f} to {run.rewards[-1]:.3f}"
            lines.append(
                f"| {name} | {settings} | {run.seed} | {' | '.join(ends)} | {gain(run):+.3f} | {curve} |"
            )
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run what is missing and print the table; returns 1 where an algorithm gains less than `LEAST` on a seed."""
    options = _parser().parse_args(argv)
    sweeps = {name: _words(name, options) for name in options.algorithms}
    try:
        if not options.read_only:
            for words in sweeps.values():
                sweep(words)
        runs = {name: trained_runs(words) for name, words in sweeps.items()}
    except XpError as error:
        print(f"algorithms: {error}", file=sys.stderr)
        return int(error.code)
    print(table(runs))
    weak = [name for name, own in runs.items() if min(map(gain, own)) < LEAST]
    for name in weak:
        print(f"{name} gained less than {LEAST:g} on a seed")
    return int(bool(weak))


def _words(name: str, options: argparse.Namespace) -> list[str]:
    words = sweep_words(
        options.backend, options.seeds, options.outputs, options.python, options.steps
    )
    return [*words, f"algorithm={name}", *SETTINGS[name], *options.overrides]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.algorithms", description=__doc__
    )
    parser.add_argument(
        "--algorithms", type=lambda text: text.split(","), default=list(SETTINGS), help="by comma"
    )
    parser.add_argument("--seeds", type=numbers, default=[1, 2], help="by comma")
    parser.add_argument(
        "--backend", default="skyrl", help="skyrl unless told otherwise: it has all of them"
    )
    parser.add_argument(
        "--steps", type=int, help="rollout steps of each run; the default's own where not given"
    )
    parser.add_argument("--python", help="the trainer's Python, where it is not this one")
    parser.add_argument(
        "--outputs", type=Path, default=Path("outputs"), help="outputs root of the runs"
    )
    parser.add_argument(
        "--read-only", action="store_true", help="run nothing: every run must be finished"
    )
    parser.add_argument("overrides", nargs="*", help="overrides for every run, as of python -m xp")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
