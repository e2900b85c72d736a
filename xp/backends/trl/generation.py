"""Which engine plays a training run's episodes: vLLM's server, vLLM inside the process, or the policy itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from xp.backends.trl.config import Sampling
from xp.backends.trl.conversation import OpenEngine
from xp.backends.trl.policy import WholePolicy
from xp.backends.trl.ranks import Ranks


class Generation:
    """Opens the engine of each rollout step.

    Args:
        sampling: of the run.
        end_id: token that ends a turn.
        ranks: the training processes.
        log: of the vLLM server, where there is one.
    """

    def __init__(self, sampling: Sampling, end_id: int, ranks: Ranks, log: str) -> None:
        self._sampling, self._end_id, self._ranks, self._log = sampling, end_id, ranks, log
        self._policy = WholePolicy()

    @contextmanager
    def step(self, trainer: Any, number: int) -> Iterator[OpenEngine]:
        """The engine of one rollout step, with the weights of its beginning; every rank must enter."""
        if not trainer.use_vllm:
            with self._own(trainer, number) as open_engine:
                yield open_engine
            return
        # TRL has brought vLLM's weights up to date, but its main process may be the last to have done so.
        self._ranks.wait()
        with self._vllm(trainer) as open_engine:
            yield open_engine

    @contextmanager
    def _own(self, trainer: Any, number: int) -> Iterator[OpenEngine]:
        import torch

        from xp.backends.trl.engine import Engine

        seed = (hash((self._sampling.seed, number)) + self._ranks.number) % 2**63
        generator = torch.Generator().manual_seed(seed)
        model = self._policy.current(trainer)
        was_training = model.training
        model.eval()
        yield lambda prompts: Engine(model, prompts, self._end_id, self._sampling, generator)
        model.train(was_training)

    @contextmanager
    def _vllm(self, trainer: Any) -> Iterator[OpenEngine]:
        from xp.backends.trl.colocated import ColocatedWriter, awake
        from xp.backends.trl.completions import ServerWriter
        from xp.backends.trl.writing import Writer, WritingEngine

        vllm = trainer.vllm_generation
        writer: Writer
        if vllm.mode == "server":
            writer = ServerWriter(vllm.server_base_url, self._sampling, self._log)
            yield lambda prompts: WritingEngine(writer, prompts, self._end_id, self._sampling)
            return
        writer = ColocatedWriter(vllm, self._sampling)
        with awake(vllm):
            yield lambda prompts: WritingEngine(writer, prompts, self._end_id, self._sampling)
