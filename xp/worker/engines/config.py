"""Inputs of the programs that start an engine: an evaluation and the server of a judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from xp.lib.codec import JsonFile
from xp.spec import JudgeModel, LauncherSpec
from xp.worker.stage import StageConfig

START_TIMEOUT_S: Final = 1800.0
"""Seconds until a server's first answer: a large model from a slow disk, and CUDA graphs."""
DEADLINE_S: Final = 600.0
"""Seconds without an answer of the engine after which it counts as hanging; it gives none while it takes weights."""


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


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(StageConfig):
    """Input of xp.worker.engines.evaluate, and of the training for the evaluations that it plays itself."""

    models: Mapping[str, str]
    """`before` and `after` -> Hugging Face id or directory, in the order of play."""
    server: VLLMServer | None
    """Arguments of vLLM's or SGLang's server, on the first accelerators of the machine. None means transformers."""


@dataclass(frozen=True)
class JudgeServer(JsonFile):
    """The server of a judge."""

    judge: JudgeModel
    launcher: LauncherSpec
    is_sglang: bool
    """True if SGLang serves it; otherwise vLLM does."""
    server: VLLMServer
    """Arguments of either engine, and accelerators: the last ones of the machine. 0 means that it runs on the CPU."""
    trainer_accelerators: int
    """Accelerators of the stage's program."""
    log: str
    date: str | None = None
    """Date for a chat template that asks for it."""
