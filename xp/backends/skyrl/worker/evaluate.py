"""Plays the held-out tasks with each model on SkyRL's engine.

    python -m xp.backends.skyrl.worker.evaluate <config.json>

Each model has a separate Ray, so that the first model's engines have ended when the second model's start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xp.backends.skyrl.worker.config import HELD_OUT_DATA, SkyRLEvaluateConfig
from xp.backends.skyrl.worker.train import native_config, prepare, write_view
from xp.episode.metrics import EpisodeFacts
from xp.lib.reading import config_of
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.worker.adapters import adapters_of, base_of, rank_in_engine
from xp.worker.evaluate import evaluate_models
from xp.worker.program import run_stage
from xp.worker.publish import check_there
from xp.worker.tasks import policy_chat


def main(argv: Sequence[str]) -> None:
    """Evaluates all models of the config and writes evaluation.json."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SkyRLEvaluateConfig.from_json)
    prepare(config.common)
    rows = load_tasks(Path(config.common.tasks), path.parent, "held_out")
    evaluate_models(config, path.parent, lambda name, model: _play(config, name, model, rows, path.parent))


def _play(
    config: SkyRLEvaluateConfig, name: str, directory: str, rows: Sequence[TaskRow], stage: Path
) -> list[EpisodeFacts]:
    from xp.backends.skyrl.worker.cluster import run_in_ray
    from xp.backends.skyrl.worker.experiment import evaluate_in_task

    check_there(directory)
    common = config.common
    chat = policy_chat(common, directory, stage)
    tasks = within_limit(Path(common.tasks), rows, chat, common.sampling.max_prompt_tokens)
    write_view(config.rounds.episodes(tasks), Path(config.common.paths[HELD_OUT_DATA]))
    num_workers = common.num_workers if common.rehearsal else None
    adapters = adapters_of(directory)
    cfg = native_config(common, directory if adapters is None else base_of(adapters))
    if adapters is not None:  # the engine gets them apart, as in training
        lora = cfg.trainer.policy.model.lora
        lora.rank, lora.lora_sync_path = rank_in_engine(adapters), str(adapters)
    played: list[EpisodeFacts] = run_in_ray(
        cfg, evaluate_in_task, (config, name, stage, Path.cwd()), num_workers=num_workers
    )
    return played


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
