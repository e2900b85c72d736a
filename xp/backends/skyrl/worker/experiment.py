"""SkyRL's experiment with xp's parts in its hooks; it runs in a Ray worker process."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp

from xp.backends.skyrl.worker.checkpoints import choose_latest, hide_other_directories, save_policy
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.engine_watch import Engines, engine_faults
from xp.backends.skyrl.worker.generator import XpGenerator
from xp.backends.skyrl.worker.pictures import SkyRLPictures
from xp.backends.skyrl.worker.prompts import DrawnPrompts, UncountedPrompts
from xp.backends.skyrl.worker.steps import ModelEvaluation, SkyRLStepLog
from xp.backends.skyrl.worker.trainer import XpTrainer
from xp.episode.advantages import advantage_rule
from xp.episode.mixture import EnvironmentMixture
from xp.lib.secrets.environment import with_secrets_file
from xp.worker.best import BestKeeper
from xp.worker.publish import publish
from xp.worker.tasks import TASK_ORDER, model_chat
from xp.worker.training import evaluation_config, open_stage


def train_in_task(cfg: Any, config: SkyRLTrainStageConfig, stage: Path, root: Path) -> None:
    """Runs a whole training, as a Ray task.

    Args:
        cfg: SkyRLTrainConfig.
        config: xp's.
        stage: directory that holds `episode.json`.
        root: the outputs root, to which all other paths are relative.
    """
    os.chdir(root)
    environ = with_secrets_file()
    with (
        open_stage(stage, config, environ) as (mix, recorder),
        engine_faults(),
    ):
        hide_other_directories()
        choose_latest(Path(cfg.trainer.ckpt_path))
        log = SkyRLStepLog(config, config.metrics_file("train"), recorder)
        evaluation = None
        eval_config = evaluation_config(config)
        if eval_config is not None:
            evaluation = ModelEvaluation(eval_config, stage / "episode.json", mix, environ)
        experiment = XpTraining(cfg, config, mix, log, evaluation)
        experiment.run()
        trainer = experiment.trainer
        save = partial(save_policy, trainer, cfg.generator.inference_engine.model_dtype)
        chat = trainer.generator.chat
        publish(save, Path(config.places.model), chat.end_ids, chat.template)
        asyncio.run(trainer.evaluate_trained())


class XpTraining(BasePPOExp):  # type: ignore[misc]
    """A training; raises XpError where the user's own function cannot be loaded.

    Args:
        cfg: SkyRLTrainConfig.
        config: xp's.
        mix: the environments.
        log: takes metrics and trajectories.
        evaluation: takes the evaluations before and after the training. None means that nothing is held out.
    """

    def __init__(
        self,
        cfg: Any,
        config: SkyRLTrainStageConfig,
        mix: EnvironmentMixture,
        log: SkyRLStepLog,
        evaluation: ModelEvaluation | None,
    ) -> None:
        self._log = log
        self._rule = advantage_rule(config.spec.algorithm)
        self._evaluation = evaluation
        self._config = config
        self._mix = mix
        super().__init__(cfg)

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> XpGenerator:
        spec = self._config.spec
        chat = model_chat(cfg.trainer.policy.model.path, spec, tokenizer)
        pictures = None
        if chat.pictures is not None:
            client = None if self._config.stub else inference_engine_client
            pictures = SkyRLPictures(chat.pictures, client, resolve_policy_model_name(cfg))
        return XpGenerator(cfg, inference_engine_client, chat, self._mix, spec, pictures)

    def get_eval_dataset(self) -> PromptDataset | None:
        if self.cfg.trainer.eval_interval > 0:
            return self.dataset(self.cfg.data.val_data)
        return None

    def dataset(self, files: list[str]) -> PromptDataset:
        """Loads the prompts in this process; SkyRL's eight cost more than they save on a filtered view, and a fork may
        hang beside Ray's threads."""
        limit = self.cfg.trainer.max_prompt_length
        return PromptDataset(files, UncountedPrompts(), limit, num_workers=0)

    def get_inference_client(self) -> Any:
        config = self._config
        if config.stub:
            from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine

            model = self.cfg.trainer.policy.model.path
            weights = Path(config.stage_dir, "engine_weights.safetensors").absolute()
            spec = config.spec
            return CpuEngine(model, weights, spec.backend.num_threads, spec.model.images)
        from xp.backends.skyrl.worker import engine_key

        has_key = engine_key.use(self.cfg)
        if config.num_workers is not None:
            from xp.backends.skyrl.worker.rehearsal import cpu_torch

            cpu_torch.prepare_router()
        client = super().get_inference_client()
        Engines(tuple(client.server_urls), has_key).write(Path(self.cfg.trainer.log_path))
        return client

    def get_trajectory_logger(self) -> None:
        """Returns None: xp writes trajectories to its own file."""

    def get_train_dataset(self) -> PromptDataset | DrawnPrompts:
        prompts = self.dataset(self.cfg.data.train_data)
        if self._config.spec.env.has_curriculum:
            return DrawnPrompts(prompts, self._config)
        if self._config.spec.algorithm.dynamic_sampling:
            order = Path(self.cfg.data.train_data[0]).with_name(TASK_ORDER)
            prompts.dataframe = prompts.dataframe.select(json.loads(order.read_text()))
        return prompts

    def get_tracker(self) -> SkyRLStepLog:
        return self._log

    def get_trainer(self, **parts: Any) -> XpTrainer:
        xp_parts = (self._config, self._rule, BestKeeper.of(self._config), self._evaluation)
        if not self.cfg.trainer.fully_async.enabled:
            return XpTrainer(*xp_parts, **parts)
        from xp.backends.skyrl.worker.async_rollouts import AsyncTrainer

        return AsyncTrainer(*xp_parts, **parts)
