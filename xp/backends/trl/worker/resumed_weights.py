"""Weights of a checkpoint that a training goes on from, by transformers' own loader.

transformers 5.23's Trainer compares the names of a checkpoint's file with those of the network in memory, and goes on with
a warning where they differ: where `from_pretrained` converts names (parts for pictures, experts that are one tensor in
memory), it would go on with the weights of the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError


class WholeCheckpoints:
    """Mixin of a trainer: a checkpoint is loaded whole, unless FSDP or peft loads it, by the names of memory."""

    model: Any
    is_fsdp_enabled: bool

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        network = self.model if model is None else model
        if self.is_fsdp_enabled or hasattr(network, "peft_config"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]
        else:
            load_whole(network, Path(resume_from_checkpoint))


def load_whole(model: Any, checkpoint: Path) -> None:
    """Gives a network the weights of a checkpoint in Hugging Face's form.

    Args:
        model: the network, not wrapped.
        checkpoint: its directory.

    Raises:
        XpError: (RUN_DIR) the checkpoint lacks weights of the network.
    """
    dtype = next(model.parameters()).dtype
    loaded, found = type(model).from_pretrained(checkpoint, dtype=dtype, output_loading_info=True)
    missing = sorted(found["missing_keys"])
    if missing:
        raise XpError(
            f"{checkpoint} lacks {len(missing)} weights of the network, such as {missing[0]}; remove this checkpoint and"
            " resume the run from the one before, or start a new run",
            ExitCode.RUN_DIR,
        )
    model.load_state_dict(loaded.state_dict())
