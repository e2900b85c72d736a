"""SkyRL's trainer of a fine-tuning with xp's workers and metrics; it runs in a Ray worker process."""

from __future__ import annotations

from typing import Any

from skyrl.train.sft_trainer import SFTTrainer

from xp.backends.skyrl.worker.sft import SftLog


class XpSftTrainer(SFTTrainer):  # type: ignore[misc]
    """SkyRL's trainer, whose batch has xp's tokens and masks.

    Args:
        sft_cfg: SkyRL's SFTConfig.
        cfg: SkyRLTrainConfig of the workers.
        log: takes the metrics.
    """

    tracker: SftLog

    def __init__(self, sft_cfg: Any, cfg: Any, log: SftLog) -> None:
        super().__init__(sft_cfg, skyrl_cfg=cfg)
        self.tracker = log

    def _init_tracker(self) -> None:
        """Keeps xp's tracker instead of SkyRL's."""

    def _init_workers(self) -> None:
        """SkyRL's method, with xp's own policy worker under FSDP."""
        if self.sft_cfg.strategy == "fsdp":
            from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker

            from xp.backends.skyrl.worker.workers import TiedPolicyWorker

            fsdp_worker.PolicyWorker = TiedPolicyWorker  # SkyRL's method imports it by this name
        super()._init_workers()

    def train_step(self, batch: Any, step: int) -> dict[str, Any]:
        """SkyRL's method, which returns no learning rate."""
        del step
        output = self.dispatch.forward_backward(
            "policy", batch, loss_fn="cross_entropy", return_per_token_outputs=False
        )
        grad_norm, metrics = self.dispatch.optim_step("policy"), output.metrics
        self.tracker.learning_rate = float(metrics["policy_lr"] if "policy_lr" in metrics else metrics["lr"])
        return {"loss": metrics.get("final_loss", metrics.get("loss")), "grad_norm": grad_norm, "timings": {}}
