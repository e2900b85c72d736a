"""Inputs of the programs that start an engine: an evaluation and the server of a judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xp.lib.codec import JsonFile
from xp.tasks.evaluated import Rounds
from xp.worker.stage import Sampling, StageConfig


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
class LocalEngine:
    """Engine of one model on this machine: transformers in the program's process, or a server that it starts."""

    name: str
    """`transformers`, `vllm` or `sglang`."""
    dtype: str
    """Data type of the computation."""
    num_threads: int
    """Number of threads of transformers."""
    server: VLLMServer | None
    """Arguments of either server, on the first accelerators of the machine; None: transformers."""


@dataclass(frozen=True)
class EvaluateConfig(JsonFile):
    """Input of xp.engines.evaluate, and of the training for the evaluations that it plays itself."""

    common: StageConfig
    models: Mapping[str, str]
    """`before` and `after` -> Hugging Face id or directory, in the order of play."""
    rounds: Rounds
    sampling: Sampling
    batch_size: int
    """Largest number of concurrent episodes."""
    engine: LocalEngine


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
