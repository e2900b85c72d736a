"""Runs in the job: `python -m xp_sample.train <config.json>`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.mixture import EnvironmentMixture
from xp.tasks.load import load_tasks
from xp.worker.program import run_stage
from xp_sample.dialect import write


def main(argv: Sequence[str]) -> None:
    path = Path(argv[0])
    config = json.loads(path.read_text())
    played = []
    with EnvironmentMixture.from_file(path.with_name("episode.json"), os.environ) as mix:
        for row in load_tasks(Path(config["tasks"]), path.parent, "train"):
            episode = mix.episode(row)
            total = sum(map(int, re.findall(r"\d+", row.messages[-1]["content"])))
            episode.step(write("submit", {"total": total}))
            played.append(EpisodeFacts(row.env, row.task_id, episode.settle(), num_tokens=1))
    MetricsFile(Path(config["metrics"]), "train", config["attempt"]).write(
        1, episode_metrics(played, 1, 1.0)
    )
    shutil.copytree(config["base_model"], config["model_dir"], dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
