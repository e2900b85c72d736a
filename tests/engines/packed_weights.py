"""The extension of SkyRL's vLLM workers, without what makes a CPU compute with the weights that came last."""

from __future__ import annotations

from xp.worker import plain_weights

plain_weights.keep_plain_weights = lambda: None

from xp.backends.skyrl.worker.rehearsal.extension import SkyRLExtension  # noqa: E402

__all__ = ["SkyRLExtension"]
