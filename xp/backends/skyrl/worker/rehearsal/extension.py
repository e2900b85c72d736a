"""Loaded by vLLM in each worker of SkyRL's servers, before the model: SkyRL's extension and the transfer over gloo."""

from __future__ import annotations

from xp.backends.skyrl.worker import process

# vLLM starts its workers itself: Ray, which prepares all other processes, does not know them.
process.prepare_process()

from skyrl.backends.skyrl_train.inference_servers.new_inference_worker_wrap import NewInferenceWorkerWrap  # noqa: E402

from xp.worker import gloo_transfer  # noqa: E402

__all__ = ["SkyRLExtension", "gloo_transfer"]


class SkyRLExtension(NewInferenceWorkerWrap):  # type: ignore[misc]
    """SkyRL's own."""
