"""Sampling of an engine, and the server of one that a stage starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VLLMServer:
    """A vLLM server that a stage starts and stops."""

    arguments: tuple[str, ...]
    """Arguments of `vllm serve` after the model, without address and port."""
    num_accelerators: int
    """Number of accelerators reserved for the server: the last ones of the stage."""
    start_timeout_s: float
    """Seconds from the server's start to its first answer, for loading weights and compilation."""
    patience_s: float
    """Seconds that its health check may be unanswered during use."""
