"""Which engine plays a training run's episodes: vLLM's server, vLLM inside the process, or the policy itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from xp.backends.trl.worker import guarded
from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.conversation import OpenEngine
from xp.backends.trl.worker.policy import WholePolicy
from xp.backends.trl.worker.ranks import Ranks
from xp.episode.tokens import ChatTokens

EngineOf = Callable[[TRLSampling], OpenEngine]
"""The engine with the weights of a step, for training's sampling or for evaluation's."""


class Generation:
    """Opens the engine of each rollout step.

    Args:
        seed: of the run.
        chat: the policy's tokenizer.
        ranks: the training processes.
        log: of the vLLM server, where there is one.
    """

    def __init__(self, seed: int, chat: ChatTokens, ranks: Ranks, log: str) -> None:
        self._seed, self._chat, self._ranks, self._log = seed, chat, ranks, log
        self._policy = WholePolicy()

    @contextmanager
    def step(self, trainer: Any, number: int) -> Iterator[EngineOf]:
        """The engine of one rollout step, with the weights of its beginning; every rank must enter."""
        if not trainer.use_vllm:
            with self._own(trainer, number) as engine:
                yield engine
            return
        # TRL has brought vLLM's weights up to date, but its main process may be the last to have done so.
        self._ranks.wait()
        with self._vllm(trainer) as engine:
            yield engine

    @contextmanager
    def _own(self, trainer: Any, number: int) -> Iterator[EngineOf]:
        import torch

        from xp.backends.trl.worker.engine import TransformersEngine

        seed = (hash((self._seed, number)) + self._ranks.number) % 2**63
        model = self._policy.current(trainer)
        was_training = model.training
        model.eval()

        def engine(sampling: TRLSampling) -> OpenEngine:
            generator = torch.Generator().manual_seed(seed)
            is_stop = self._chat.holds_one_of(sampling.stop)
            return lambda prompts: TransformersEngine(model, prompts, self._chat.end_ids, sampling, generator, is_stop)

        yield engine
        model.train(was_training)

    @contextmanager
    def _vllm(self, trainer: Any) -> Iterator[EngineOf]:
        from xp.backends.trl.worker.colocated import ColocatedWriter, awake
        from xp.backends.trl.worker.completions import ServerWriter
        from xp.backends.trl.worker.writing import Writer, WritingEngine

        vllm = trainer.vllm_generation

        def engine(sampling: TRLSampling) -> OpenEngine:
            writer: Writer
            if vllm.mode == "server":
                key = os.environ.get(guarded.KEY)
                writer = ServerWriter(vllm.server_base_url, sampling, self._chat.end_ids, self._log, key=key)
            else:
                writer = ColocatedWriter(vllm, sampling, self._chat.end_ids)
            return lambda prompts: WritingEngine(writer, prompts, self._chat.end_ids, sampling)

        with awake(vllm):
            yield engine
