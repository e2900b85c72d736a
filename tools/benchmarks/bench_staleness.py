"""Steps a second of a training that plays one step ahead, against one that plays and updates by turns, on each backend.

    python -m tools.benchmarks.bench_staleness [--backends trl,skyrl] [--steps 10] [--passes 4] [--skyrl-python PYTHON]

The environment is slow, not busy: the bundled mysteries, whose tools sleep. How long is set after a short run without
sleep, so that a rollout takes about as long as the updates. All are whole runs of `python -m xp` with the model that xp
ships, one after the other; `--passes` makes the updates long beside the sampling, which needs a core for itself too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from xp.episode.metrics_file import read_metrics

SKYRL_PYTHON = Path(__file__).parents[2] / ".venv-skyrl/bin/python"
TURNS = 8
"""Tool calls one after the other in the longest episodes of the mysteries."""
SIZES = (
    *("env.held_out=null", "evaluation.before_training=false", "training.checkpoint_every=1000"),
    *(
        "training.prompts_per_step=4",
        "training.group_size=8",
        "training.micro_batch_size=8",
        "training.kl_coef=0",
    ),
    *("backend.num_threads=1", "training.warmup_updates=0"),
)
BACKENDS = {
    "trl": (),
    "skyrl": ("backend=skyrl", "hardware=cpu"),
}
AHEAD = {
    "trl": ("training.max_staleness=1", "algorithm.importance_correction=token_truncate"),
    "skyrl": (
        *("training.max_staleness=1", "algorithm.importance_correction=token_truncate"),
        *("backend.engine.placement=separate", "backend.engine.accelerators=1"),
        *("backend.parallel.offload_optimizer=false", "training.unfinished=continue"),
    ),
}
ENVIRONMENT = '''"""The bundled mysteries with slow tools."""

import asyncio

from openreward.environments import ToolOutput, tool

from xp.envs.builtin.whodunit_mini import Accusation, Interview, Search, WhodunitMini


class Slow(WhodunitMini):
    """Each call takes {wait_s} seconds, during which the server computes nothing."""

    @tool
    async def interview(self, params: Interview) -> ToolOutput:
        """Ask for an alibi."""
        await asyncio.sleep({wait_s})
        return self._output(self._game.interview(params.suspect))

    @tool
    async def search(self, params: Search) -> ToolOutput:
        """Look for a weapon."""
        await asyncio.sleep({wait_s})
        return self._output(self._game.search(params.room))

    @tool
    async def accuse(self, params: Accusation) -> ToolOutput:
        """End the case."""
        await asyncio.sleep({wait_s})
        return self._output(self._game.accuse(params.suspect, params.weapon, params.room))
'''


def trained(directory: Path, wait_s: float, words: Sequence[str]) -> list[dict[str, Any]]:
    """Lines of metrics of a run in which each tool call takes that long."""
    directory.mkdir()
    (directory / "slow.py").write_text(ENVIRONMENT.format(wait_s=f"{wait_s:.3f}"))
    done = subprocess.run(
        [sys.executable, "-m", "xp", "env.serve=slow:Slow", *SIZES, *words],
        cwd=directory,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    (run,) = (directory / "outputs/runs").iterdir()
    return read_metrics(run / "metrics.jsonl", "train")


PLAIN = slice(2, -1)
"""Steps that count: of the first two nothing was played ahead, and the last one writes the checkpoint."""


def compared(backend: str, options: argparse.Namespace, place: Path) -> str:
    """Runs one backend by turns and one step ahead. Returns a line with both paces and their ratio."""
    words = [*BACKENDS[backend], f"training.passes_per_step={options.passes}", *options.overrides]
    if backend == "skyrl":
        words.append(f"backend.runtime.python={options.skyrl_python.absolute()}")
    quick = trained(place / "quick", 0.0, [*words, "training.num_steps=5"])[PLAIN]
    wait = max(0.0, fmean(map(_update, quick)) - fmean(map(_rollout, quick))) / TURNS
    steps = f"training.num_steps={options.steps}"
    turns = trained(place / "by_turns", wait, [*words, steps])[PLAIN]
    ahead = trained(place / "ahead", wait, [*words, steps, *AHEAD[backend]])
    sampling, rollout, update = (
        fmean(map(part, lines))
        for part, lines in ((_rollout, quick), (_rollout, turns), (_update, turns))
    )
    by_turns, beside = (
        fmean(line["time/step_s"] for line in lines) for lines in (turns, ahead[PLAIN])
    )
    return (
        f"{backend}: a tool takes {wait:.2f} s (without it a rollout takes {sampling:.2f} s);"
        f" by turns: a rollout {rollout:.2f} s, the rest {update:.2f} s,"
        f" {1 / by_turns:.3f} steps/s; one step ahead: {1 / beside:.3f} steps/s, staleness"
        f" {[round(line['training/staleness'], 2) for line in ahead]}; {by_turns / beside:.2f} times"
    )


def main(argv: Sequence[str] = ()) -> None:
    """Print each way's steps a second, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--backends", type=lambda text: text.split(","), default=list(BACKENDS), help="by comma"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--passes", type=int, default=4, help="training.passes_per_step")
    parser.add_argument(
        "--skyrl-python", type=Path, default=SKYRL_PYTHON, help="a Python with SkyRL"
    )
    parser.add_argument("overrides", nargs="*", help="overrides for every run, as of python -m xp")
    options = parser.parse_args(argv)
    for backend in options.backends:
        if backend == "skyrl" and not options.skyrl_python.exists():
            print(f"  skyrl was not run: it needs {options.skyrl_python} (make .venv-skyrl/.done)")
            continue
        with tempfile.TemporaryDirectory() as place:
            print(f"  {compared(backend, options, Path(place))}", flush=True)


def _rollout(line: dict[str, Any]) -> float:
    return float(line["time/rollout_s"])


def _update(line: dict[str, Any]) -> float:
    """Seconds of a step that are not its rollout's."""
    return float(line["time/step_s"] - line["time/rollout_s"])


if __name__ == "__main__":
    main(sys.argv[1:])
