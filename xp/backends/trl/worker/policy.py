"""The policy as generation wants it: whole, on every rank, whatever training wrapped around it."""

from __future__ import annotations

from typing import Any


class WholePolicy:
    """Gives a whole model with the current weights.

    Under FSDP2 a forward is a collective, and ranks whose episodes have different numbers of turns would wait for each
    other for ever; so each rank generates with a copy of its own, brought up to date before the first turn.
    """

    def __init__(self) -> None:
        self._copy: Any = None

    def current(self, trainer: Any) -> Any:
        """The model to generate with; every rank must call it."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        if trainer.is_fsdp_enabled:
            return self._copied(model)
        return model.get_base_model() if hasattr(model, "peft_config") else model

    def _copied(self, model: Any) -> Any:
        import torch
        from transformers import AutoModelForCausalLM

        if self._copy is None:
            dtype = next(model.parameters()).dtype
            self._copy = AutoModelForCausalLM.from_config(model.config, dtype=dtype).eval()
        copies = dict(self._copy.named_parameters())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                copies[name].copy_(parameter.full_tensor())
        return self._copy
