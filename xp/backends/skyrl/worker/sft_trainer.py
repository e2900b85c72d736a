"""SkyRL's trainer of a fine-tuning with xp's workers and metrics; it runs in a Ray worker process."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from skyrl.backends.skyrl_train.training_batch import TensorList
from skyrl.train import sft_trainer
from skyrl.train.sft_trainer import SFTTrainer

from xp.backends.skyrl.worker.checkpoints import choose_latest, hide_other_directories, save_policy
from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.episode.picture_reader import GRID, PIXELS, PictureReader
from xp.episode.tokens import ChatTokens
from xp.lib.patching import replaced
from xp.spec.model import Model
from xp.worker.demonstrations import PHASE
from xp.worker.publish import publish
from xp.worker.sft import HELD_OUT_FILE, PICTURES, Updates, read_examples, tokens_of_update
from xp.worker.tasks import picture_reader

HELD_OUT: Final = f"eval/{HELD_OUT_FILE}/loss"
"""SkyRL's name of the held-out loss: it has the name of the file."""


def train_in_task(cfg: Any, sft_cfg: Any, config: SkyRLSftConfig, root: Path) -> None:
    """Updates the model on the episodes and publishes it, as a Ray task.

    Args:
        cfg: SkyRLTrainConfig.
        sft_cfg: SkyRL's SFTConfig.
        config: xp's.
        root: the outputs root.
    """
    os.chdir(root)
    hide_other_directories()
    choose_latest(Path(sft_cfg.ckpt_path))
    trained = read_examples(Path(sft_cfg.pretokenized_dataset_paths[0]))
    tokens = tokens_of_update(trained, config.spec.sft.batch_size)
    updates = Updates(config.metrics_file(PHASE), sft_cfg.num_steps, tokens)
    log = SftLog(updates, sft_cfg.num_steps)
    trainer = XpSftTrainer(sft_cfg, cfg, log, config.spec.model)
    trainer.setup()
    updates.start()
    trainer.train()
    trainer.shutdown()
    save = partial(save_policy, trainer, cfg.generator.inference_engine.model_dtype)
    chat = ChatTokens(trainer.tokenizer, config.spec.model)
    publish(save, Path(config.target), chat.end_ids, chat.template)


class SftLog:
    """The tracker passed to SkyRL's trainer.

    Args:
        updates: takes the metrics.
        num_updates: number of updates of the whole fine-tuning.
    """

    def __init__(self, updates: Updates, num_updates: int) -> None:
        self._updates = updates
        self._num_updates = num_updates
        self._held_out_loss: float | None = None
        self._step = 0
        """The trainer's number of updates."""
        self.learning_rate = math.nan
        """Rate of the update that was computed last."""

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """Takes the metrics of an update, or of an evaluation, which SkyRL makes before the first and after the last
        update."""
        loss = data.get(HELD_OUT)
        if "train/loss" in data:
            self._step = step  # an evaluation after the last update has a later one
            values = data["train/loss"], data["train/grad_norm"], self.learning_rate
            self._updates.end(step, *values, is_last=step == self._num_updates)
        elif loss is not None and self._updates.start_loss is None:
            if step:
                print(f"continuing from update {step}", flush=True)
            self._updates.begin(step, loss)
        elif loss is not None:
            self._held_out_loss = loss

    def finish(self) -> None:
        """Writes the last update's metrics."""
        self._updates.finish(self._step, self._held_out_loss)


class SkyRLPictureCollator:
    """SkyRL's batch of tokens, and the pixels of each row, with no lines for a row without pictures.

    SkyRL's own rows have their pixels as numbers in a file, and a batch of some rows without them is refused.

    Args:
        collate: SkyRL's collator of tokens.
        pictures: the pictures as the policy reads them.
    """

    def __init__(self, collate: Callable[..., Any], pictures: PictureReader) -> None:
        self._collate = collate
        self._pictures = pictures

    def __call__(self, examples: list[dict[str, Any]], batch_size: int) -> Any:
        batch = self._collate(examples, batch_size=batch_size)
        pixels = [
            self._pictures.row_pixels(example.get(PICTURES, "").split()) for example in examples
        ]
        for key in (PIXELS, GRID):
            batch[key] = TensorList([tensors[key] for tensors in pixels])
        return batch


class XpSftTrainer(SFTTrainer):  # type: ignore[misc]
    """SkyRL's trainer, whose batch has xp's tokens and masks.

    Args:
        sft_cfg: SkyRL's SFTConfig.
        cfg: SkyRLTrainConfig of the workers.
        log: takes the metrics.
        policy: the spec's model.
    """

    tracker: SftLog
    collator: Any

    def __init__(self, sft_cfg: Any, cfg: Any, log: SftLog, policy: Model) -> None:
        super().__init__(sft_cfg, skyrl_cfg=cfg)
        self.tracker = log
        self._policy = policy

    def _init_tracker(self) -> None:
        """Keeps xp's tracker instead of SkyRL's."""

    def setup(self) -> None:
        """SkyRL's method with xp's own policy worker under FSDP, and without its processor of pictures: the episodes'
        tokens are there, and their pixels are made by SkyRLPictureCollator."""
        if self.sft_cfg.strategy == "fsdp":
            from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker

            from xp.backends.skyrl.worker.workers import TiedPolicyWorker

            fsdp_worker.PolicyWorker = TiedPolicyWorker  # SkyRL's method imports it by this name
        with replaced(sft_trainer, get_processor=lambda *_, **__: None):
            super().setup()
        model = self.cfg.trainer.policy.model.path
        reader = picture_reader(model, self._policy, self.tokenizer)
        if reader is not None:
            self.collator = SkyRLPictureCollator(self.collator, reader)
        update = self.dispatch.forward_backward

        def with_rate(*args: Any, **settings: Any) -> Any:
            """SkyRL's update, of whose metrics its trainer leaves out the learning rate."""
            output = update(*args, **settings)
            rate = output.metrics.get("policy_lr", output.metrics.get("lr", math.nan))
            self.tracker.learning_rate = float(rate)
            return output

        self.dispatch.forward_backward = with_rate
