"""Extension of vLLM's workers in SkyRL's servers: SkyRL's own, and the transfer over gloo; loaded before the model."""

from __future__ import annotations

from xp.backends.skyrl.worker import process

# vLLM starts its workers itself, so Ray does not prepare them like all other processes.
process.prepare_process()

from skyrl.backends.skyrl_train.inference_servers.new_inference_worker_wrap import (  # noqa: E402
    NewInferenceWorkerWrap,
)

from xp.worker import gloo_transfer  # noqa: E402

__all__ = ["SkyRLExtension", "gloo_transfer"]


class SkyRLExtension(NewInferenceWorkerWrap):  # type: ignore[misc]
    """SkyRL's own extension, in a prepared process."""
