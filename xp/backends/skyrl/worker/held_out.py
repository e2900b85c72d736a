"""An evaluation on SkyRL's engines without a trainer, in a Ray process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from skyrl.train.utils.trainer_utils import build_dataloader
from tqdm import tqdm

from xp.backends.skyrl.worker.config import SkyRLEvaluateConfig
from xp.backends.skyrl.worker.engine_watch import engine_faults
from xp.backends.skyrl.worker.experiment import XpExperiment, register_environment
from xp.envs.secrets_file import environment
from xp.episode.metrics import Played
from xp.episode.mixture import EnvironmentMixture
from xp.episode.upload import Recorder
from xp.worker.played import record


def evaluate_in_task(cfg: Any, config: SkyRLEvaluateConfig, name: str, stage: Path, root: Path) -> list[Played]:
    """Task for Ray: plays all held-out episodes of one model.

    Args:
        cfg: SkyRLTrainConfig, whose policy is the model.
        config: xp's configuration.
        name: name of the model within the evaluation.
        stage: directory with `episode.json`.
        root: the outputs root.
    """
    os.chdir(root)
    register_environment()
    held = environment()
    with (
        EnvironmentMixture.from_file(stage / "episode.json", held) as mix,
        Recorder(stage / "trajectories" / f"{name}.jsonl", mix, config.common.upload_as, held) as recorder,
        engine_faults(),
    ):
        evaluation = XpEvaluation(cfg, config.common, mix, mask_truncated=False)
        # SkyRL's client must be made outside an event loop, since it runs one itself.
        client = evaluation.get_inference_client()
        return asyncio.run(_play(evaluation, client, config, name, recorder))


class XpEvaluation(XpExperiment):
    """An experiment that does not train."""

    def get_train_dataset(self) -> None:
        """Returns None, since there is no training."""


async def _play(
    evaluation: XpEvaluation, client: Any, config: SkyRLEvaluateConfig, name: str, recorder: Recorder
) -> list[Played]:
    await client.wake_up()
    cfg = evaluation.cfg
    generator = evaluation.get_generator(cfg, evaluation.tokenizer, client)
    played: list[Played] = []
    with tqdm(total=len(evaluation.eval_dataset), desc=f"evaluate {name}", unit="episode") as bar:
        loader = build_dataloader(cfg, evaluation.eval_dataset, is_train=False)
        async for running_episodes in generator.held_out(loader, cfg, 0):
            own = (running.record for running in running_episodes)
            played += record(own, recorder, config.common.run, f"evaluate/{name}", 0)
            bar.update(len(running_episodes))
    return played
