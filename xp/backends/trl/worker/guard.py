"""GRPOTrainer that applies no update whose loss or gradient is no finite number."""

from __future__ import annotations

import math
from typing import Any

import torch
from trl import GRPOTrainer

from xp.backends.trl.worker.steps import StepLog


class GuardedTrainer(GRPOTrainer):  # type: ignore[misc]
    """Asks its log about each update, after the gradient's norm is known and before the optimizer's step.

    Args:
        log: of the run; raises where the run is to stop.
        parts: GRPOTrainer's own arguments.
    """

    _tr_loss: torch.Tensor
    """Trainer's own sum since it last logged: of this update."""

    def __init__(self, log: StepLog, **parts: Any) -> None:
        self._xp_log = log
        super().__init__(**parts)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The trainer's hook between clipping and the optimizer's step."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if self._xp_log.is_applied(self.state.global_step, self._loss(), None if norm is None else float(norm)):
            return norm
        # Without gradients the optimizer's step changes nothing; a loss of nan would stay nan in Trainer's sum.
        self.optimizer.zero_grad()
        self._tr_loss = torch.zeros_like(self._tr_loss)
        return 0.0

    def _loss(self) -> float:
        """Of this update, over all ranks: not a number where one of them has none."""
        own = self._tr_loss.detach().float().reshape(1)
        everybody = self.accelerator.gather(own) if self.accelerator.num_processes > 1 else own
        return float(everybody.mean()) if bool(torch.isfinite(everybody).all()) else math.nan
