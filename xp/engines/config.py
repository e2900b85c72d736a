"""Sampling of an engine, and the server of one that a stage starts."""

from __future__ import annotations

from dataclasses import dataclass

from xp.lib.codec import JsonFile


@dataclass(frozen=True)
class VLLMServer:
    """A vLLM server that a stage starts and stops."""

    arguments: tuple[str, ...]
    """Arguments of `vllm serve` after the model, without address and port."""
    num_accelerators: int
    """Number of accelerators reserved for the server: the last ones of the stage."""
    start_timeout_s: float
    """Seconds from the server's start to its first answer, for loading weights and compilation."""
    deadline_s: float
    """Seconds that its health check may be unanswered during use."""


@dataclass(frozen=True)
class JudgeServer(JsonFile):
    """The server of a judge."""

    model: str
    """Hugging Face id or directory."""
    name: str
    """Name of the model in requests."""
    is_sglang: bool
    """True if SGLang serves it; otherwise vLLM does."""
    server: VLLMServer
    """Arguments of either engine, and accelerators: the last ones of the machine; 0: it runs on the CPU."""
    trainer_accelerators: int
    """Accelerators of the stage's program."""
    log: str
    grace_s: float
    """Seconds between TERM and KILL of the stage's program."""
    date: str | None = None
    """Date for a chat template that asks for it."""
