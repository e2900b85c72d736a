"""Plays the held-out tasks with each model on SkyRL's engine.

    python -m xp.backends.skyrl.worker.evaluate <config.json>

Each model has a Ray of its own, so that the first one's engines are gone when the second one's start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from xp.backends.skyrl.worker.config import SkyRLEvaluateConfig
from xp.backends.skyrl.worker.tasks_view import write_view
from xp.backends.skyrl.worker.train import native_config, prepare
from xp.episode.auto_dialect import resolve
from xp.episode.evaluation import evaluation_result, write_evaluation
from xp.episode.metrics import Played, check_health
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.reading import config_of
from xp.tasks.evaluated import evaluation_metrics, held_out_on_record
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.worker.program import run_stage


def main(argv: Sequence[str]) -> None:
    """Evaluate every model of the config and write evaluation.json."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SkyRLEvaluateConfig.from_json)
    prepare(config.common)
    rows = load_tasks(Path(config.common.tasks), path.parent, "held_out")
    threshold, tasks = config.common.pass_threshold, Path(config.common.tasks)
    metrics = MetricsFile(Path(config.common.metrics), "evaluate", config.common.attempt)
    results = {}
    for name, directory in config.models.items():
        played = _play(config, name, directory, rows, path.parent)
        check_health(played, config.common.max_void_fraction)
        results[name] = evaluation_result(played, threshold)
        own = evaluation_metrics(name, played, threshold, tasks)
        metrics.write(list(config.models).index(name), own)
    write_evaluation(path.parent / "evaluation.json", config.models, results, held_out_on_record(tasks))


def _play(config: SkyRLEvaluateConfig, name: str, directory: str, rows: Sequence[TaskRow], stage: Path) -> list[Played]:
    from transformers import AutoTokenizer

    from xp.backends.skyrl.worker.cluster import run_in_ray
    from xp.backends.skyrl.worker.held_out import evaluate_in_task

    if directory.startswith("runs/") and not Path(directory, "config.json").is_file():
        raise XpError(f"there is no model at {directory}; did the run get that far?", ExitCode.RUN_DIR)
    common = config.common
    chat = ChatTokens(AutoTokenizer.from_pretrained(directory), common.chat)
    resolve(stage, chat)
    kept = within_limit(Path(common.tasks), rows, chat, common.sampling.max_prompt_tokens)
    write_view(config.rounds.episodes(kept), Path(config.held_out_data))
    num_workers = common.num_workers if common.rehearsal else None
    cfg = native_config(common, directory)
    played: list[Played] = run_in_ray(cfg, evaluate_in_task, (config, name, stage, Path.cwd()), num_workers=num_workers)
    return played


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
