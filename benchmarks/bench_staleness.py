"""Steps a second of a TRL training that plays one step ahead, against one that plays and updates by turns.

    python -m benchmarks.bench_staleness [--steps 8] [--threads 1]

The environment is slow, not busy: its tool sleeps. How long is set after two steps without a wait, so that a rollout
takes about as long as the updates. Both trainings are the real trainer on the tiny model, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.fake_session import RULES, FakeSession, steady
from tests.tiny import tokenizer_and_model
from xp.backends.base import RunPaths
from xp.backends.trl.control.render import stages
from xp.backends.trl.worker.ahead import RolloutsAhead
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import quiet_trainer
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.rollout import Rollouts
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.train import make_trainer
from xp.compose import compose
from xp.envs.base import Message, Task, ToolResult
from xp.episode.episode import Episode
from xp.episode.metrics_file import MetricsFile
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

TURNS = 4
SIZES = (
    *("training.prompts_per_step=4", "training.group_size=4", "training.micro_batch_size=8", "training.kl_coef=0"),
    *("training.passes_per_step=2", "training.max_tokens_per_turn=12", "training.max_response_tokens=300"),
    *("training.warmup_updates=0", "training.checkpoint_every=1000", "training.learning_rate=0.0001"),
)
AHEAD = ("training.max_staleness=1", "algorithm.importance_correction=token")


class SlowMix:
    """Episodes of some turns, each answered after a wait."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def episode(self, row: TaskRow) -> Episode:
        def hear(text: str) -> ToolResult:
            time.sleep(self._wait_s)
            return ToolResult("go on", sum(map(ord, text)) % 5 / 4, awaits_reply=True)

        rules = replace(RULES, provider="local", max_turns=TURNS)
        limits = replace(rules.limits, episode_timeout_s=3600.0)
        task = Task(row.env, row.split, row.index)
        return Episode(task, lambda: FakeSession(steady, hear), replace(rules, limits=limits))

    def max_sessions(self) -> int:
        return 64

    calls_at_once = max_sessions


def row(number: int) -> TaskRow:
    opening = (Message(role="user", content=f"play {number}"),)
    return TaskRow(f"slow/train/{number}", "slow", Purpose.TRAIN, "train", number, "h", opening, "[]", 1.0)


def trained(wait_s: float, steps: int, *more: str) -> list[dict[str, Any]]:
    """Lines of metrics of a training."""
    tokenizer, model = tokenizer_and_model()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        for made in (tokenizer, model):
            made.save_pretrained(root / "base")
        spec = compose([*SIZES, f"training.num_steps={steps}", *more])
        job = next(one.job for one in stages(spec, RunPaths(str(root), 1, "tasks")) if one.name == "train")
        config = TRLTrainConfig.from_json(job.files[f"{root}/attempt_1/train/config.json"])
        config = replace(config, base_model=str(root / "base"))
        metrics = Path(config.common.metrics)
        metrics.parent.mkdir(parents=True, exist_ok=True)
        log = TRLStepLog(config, MetricsFile(metrics, "train", 1))
        order = [row(number) for number in range(steps * config.prompts_per_step)]
        mix: Any = SlowMix(wait_s)
        with Recorder(root / "trajectories.jsonl", mix, None, os.environ) as recorder:
            by_id = {one.task_id: one for one in order}
            parts = (config, ChatTokens(tokenizer), by_id, mix, log, recorder, Ranks())
            ahead = RolloutsAhead(order, *parts) if config.max_staleness else None
            make_trainer(config, os.environ, tokenizer, order, log, ahead or Rollouts(*parts)).train()
            if ahead is not None:
                ahead.close()
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def step_s(lines: Sequence[dict[str, Any]]) -> float:
    """Seconds of a step in the mean; the first two, of which nothing was played ahead, are left out."""
    return fmean(line["time/step_s"] for line in lines[2:])


def main(argv: Sequence[str] = ()) -> None:
    """Print each way's steps a second, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    quiet_trainer(options.threads)
    quick = trained(0.0, 4)[1:]
    wait = max(0.0, fmean(map(_update, quick)) - fmean(map(_rollout, quick))) / TURNS
    turns = trained(wait, options.steps)
    ahead = trained(wait, options.steps, *AHEAD)
    by_turns, beside = step_s(turns), step_s(ahead)
    rollout, update = fmean(map(_rollout, turns[2:])), fmean(map(_update, turns[2:]))
    print(
        f"a tool takes {wait:.2f} s; by turns: a rollout {rollout:.2f} s, updates {update:.2f} s,"
        f" {1 / by_turns:.3f} steps/s; one step ahead: {1 / beside:.3f} steps/s, staleness"
        f" {[int(one['training/staleness']) for one in ahead]}; {by_turns / beside:.2f} times",
        flush=True,
    )


def _rollout(line: dict[str, Any]) -> float:
    return float(line["time/rollout_s"])


def _update(line: dict[str, Any]) -> float:
    """Seconds of a step that are not its rollout's."""
    return float(line["time/step_s"] - line["time/rollout_s"])


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
