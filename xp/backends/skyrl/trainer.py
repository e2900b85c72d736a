"""SkyRL's trainer with xp's order of tasks, xp's metrics, and void episodes out of their group's baseline."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyrl.train.trainer import RayPPOTrainer

from xp.backends.skyrl.adapters import merge_adapter
from xp.backends.skyrl.generator import VOID
from xp.backends.skyrl.publish import prune_exports
from xp.backends.skyrl.steps import StepLog

IS_VOID = "xp_is_void"


class XpTrainer(RayPPOTrainer):  # type: ignore[misc]
    """Takes SkyRL's own arguments; its tracker is a StepLog and its generator an XpGenerator."""

    tracker: StepLog

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        """SkyRL's loader shuffles; the view is in xp's order already, the same as under the other trainers."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        trainer = self.cfg.trainer
        self.train_dataloader = StatefulDataLoader(
            self.train_dataset,
            batch_size=trainer.train_batch_size,
            shuffle=False,
            drop_last=True,
            collate_fn=self.train_dataset.collate_fn,
            num_workers=0,
        )
        steps = len(self.train_dataloader) * trainer.epochs
        self.total_training_steps = min(steps, trainer.max_training_steps or steps)

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:  # noqa: N803
        """With xp's policy worker under FSDP."""
        if self.cfg.trainer.strategy == "fsdp":
            from xp.backends.skyrl.workers import TiedPolicyWorker

            PolicyWorker = TiedPolicyWorker  # noqa: N806
        super().build_models(PolicyWorker, CriticWorker, RefWorker)

    def save_models(self) -> None:
        """A Hugging Face model of whole weights beside each checkpoint that is kept."""
        super().save_models()
        exports, checkpoints = Path(self.cfg.trainer.export_path), Path(self.cfg.trainer.ckpt_path)
        merge_adapter(exports / f"global_step_{self.global_step}" / "policy")
        prune_exports(exports, checkpoints)

    async def generate(self, input_batch: Any) -> Any:
        """Play a step's episodes and log their Outcomes; raises XpError(UNHEALTHY) where too many are void."""
        began = time.monotonic()
        output = await super().generate(input_batch)
        self.tracker.episodes(self.generator.plays(input_batch), self.global_step, time.monotonic() - began)
        return output

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Held-out episodes of the policy as it is; nothing for SkyRL's log, since xp has its own line for them."""
        del vllm_metrics_scraper
        batches = self.generator.held_out(self.eval_dataloader, self.cfg, self.global_step)
        self.tracker.held_out([play async for plays in batches for play in plays], self.global_step)
        return {}

    def convert_to_training_input(self, generator_output: Any, uids: Any) -> Any:
        data = super().convert_to_training_input(generator_output, uids)
        data.metadata[IS_VOID] = [reason == VOID for reason in generator_output["stop_reasons"]]
        return data

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """Void episodes form a group of their own, of zeros: whatever the estimator, their advantage is zero."""
        uids: Sequence[str] = data.metadata["uids"]
        is_void = data.metadata.pop(IS_VOID)
        groups = [f"{uid}/{VOID}" if void else uid for uid, void in zip(uids, is_void, strict=True)]
        sizes = Counter(groups)
        for row, group in enumerate(groups):
            if sizes[group] == 1:
                # SkyRL's baseline of a group of one is 0: its whole reward would be its advantage.
                data["rewards"][row] = 0.0
        data.metadata["uids"] = groups
        return super().compute_advantages_and_returns(data)
