"""Plays the held-out tasks with each model on Slime's engines.

    python -m xp.backends.slime.worker.evaluate <config.json>

It is Slime's train.py without training: the same router, engines and generate function as in a run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xp.backends.slime.worker.config import HELD_OUT_VIEW, SlimeEvaluateConfig, WorkerConfig
from xp.backends.slime.worker.models import local_model
from xp.backends.slime.worker.program import run_train
from xp.backends.slime.worker.sources import open_sources
from xp.backends.slime.worker.train import write_episodes
from xp.errors import ExitCode, XpError
from xp.lib.reading import config_of
from xp.worker.evaluate import RunEvaluation
from xp.worker.program import run_stage
from xp.worker.tasks import held_out_tasks, policy_chat


def main(argv: Sequence[str]) -> None:
    """Evaluates all models of the config and writes evaluation.json."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SlimeEvaluateConfig.from_json)
    root = Path.cwd()
    open_sources(config.command)
    evaluation = RunEvaluation(config, path.with_name("episode.json"))
    for name, model in config.models.items():
        if evaluation.is_due(name):
            _play(config, name, local_model(model, root), path, root)
            if evaluation.is_due(name):
                raise XpError(f"Slime ended without evaluating {name}", ExitCode.MISSING_OUTPUT)
    evaluation.finish()


def _play(config: SlimeEvaluateConfig, name: str, model: Path, path: Path, root: Path) -> None:
    """Runs Slime, whose rollout process records the result."""
    stage = path.parent
    chat = policy_chat(config.common, model, stage)
    rows = held_out_tasks(config.common, stage, chat, config.common.limits.max_prompt_tokens)
    num_episodes = write_episodes(rows, config.rounds, stage / HELD_OUT_VIEW)
    command = config.command.with_value("--hf-checkpoint", str(model))
    run_train(command, worker_config(config, name, root, num_episodes, path))


def worker_config(config: SlimeEvaluateConfig, name: str, root: Path, num_episodes: int, path: Path) -> WorkerConfig:
    """The configuration for Slime's processes."""
    return WorkerConfig(
        root=str(root.absolute()),
        common=config.common,
        phase=f"evaluate/{name}",
        group_size=1,
        num_steps=1,
        prompts_per_step=num_episodes,
        evaluation=str(path),
    )


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
