"""Choice of the engine for a training run: vLLM's server, vLLM inside the process, or the policy itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xp.backends.trl.worker import guarded
from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.conversation import OpenEngine
from xp.backends.trl.worker.episodes import Restored
from xp.backends.trl.worker.kept_weights import KeptWeights
from xp.backends.trl.worker.policy import WholePolicy
from xp.backends.trl.worker.ranks import Ranks
from xp.episode.tokens import ChatTokens

EngineOf = Callable[[TRLSampling], OpenEngine]
"""The engine with the weights of a step, for training's sampling or for evaluation's."""


@dataclass(frozen=True)
class StepEngine:
    """The engine of one rollout step."""

    of: EngineOf
    restored: Restored | None
    """Function of an engine that is started again where it is lost."""


class Generation:
    """Opens the engine of each rollout step.

    Args:
        seed: of the run.
        chat: the policy's tokenizer.
        ranks: the training processes.
        log: of the vLLM server, where there is one.
        is_ahead: whether episodes are played while the trainer's weights change.
    """

    def __init__(self, seed: int, chat: ChatTokens, ranks: Ranks, log: str, *, is_ahead: bool = False) -> None:
        self._seed, self._chat, self._ranks, self._log = seed, chat, ranks, log
        self._is_ahead = is_ahead
        self._policy = WholePolicy(is_copied=is_ahead)
        self._model: Any = None
        self._weights: KeptWeights | None = None
        """Weights for a server that is started again where it is lost."""

    def keep(self, weights: KeptWeights) -> None:
        """Go on with another server where one is lost."""
        self._weights = weights

    def restarts(self) -> int:
        """Number of restarts of the engine since this was asked last."""
        return 0 if self._weights is None else self._weights.restarts()

    @contextmanager
    def step(self, trainer: Any, number: int) -> Iterator[StepEngine]:
        """The engine of one rollout step, with the weights of its beginning; every rank must enter."""
        self.update(trainer)
        with self.engine(trainer, number) as engine:
            yield engine

    def update(self, trainer: Any) -> None:
        """Give the engine the current weights; every rank must call it, and nothing may be written meanwhile."""
        if not trainer.args.use_vllm:
            self._model = self._policy.current(trainer)
            return
        # Else TRL has done it, before it asked for episodes.
        if self._is_ahead:
            trainer.vllm_generation.sync_weights()
        # Its main process may be the last to have done so.
        self._ranks.wait()

    @contextmanager
    def engine(self, trainer: Any, number: int) -> Iterator[StepEngine]:
        """The engine of one rollout step, with the weights that it was given last."""
        restored = None if self._weights is None else self._weights.restored
        with self._vllm(trainer, number) if trainer.args.use_vllm else self._own(number) as engine:
            yield StepEngine(engine, restored)

    @contextmanager
    def _own(self, number: int) -> Iterator[EngineOf]:
        from xp.backends.trl.worker.engine import TransformersEngine

        seed = self._seed_of(number)
        model = self._model
        was_training = model.training
        model.eval()

        def engine(sampling: TRLSampling) -> OpenEngine:
            is_stop = self._chat.holds_one_of(sampling.stop)
            return lambda opening: TransformersEngine(model, opening, self._chat.end_ids, sampling, seed, is_stop)

        yield engine
        model.train(was_training)

    @contextmanager
    def _vllm(self, trainer: Any, number: int) -> Iterator[EngineOf]:
        from xp.backends.trl.worker.colocated import ColocatedWriter, awake
        from xp.backends.trl.worker.completions import ServerWriter
        from xp.backends.trl.worker.writing import Writer, WritingEngine

        vllm, seed = trainer.vllm_generation, self._seed_of(number)

        def writer(sampling: TRLSampling) -> Writer:
            if vllm.mode != "server":
                return ColocatedWriter(vllm, sampling, self._chat.end_ids)
            secret, url = os.environ.get(guarded.KEY), vllm.server_base_url
            key = None if secret is None else guarded.key_at(secret, url)
            return ServerWriter(url, sampling, self._chat.end_ids, self._log, key=key)

        def engine(sampling: TRLSampling) -> OpenEngine:
            return lambda opening: WritingEngine(writer(sampling), opening, self._chat.end_ids, sampling, seed)

        with awake(vllm):
            yield engine

    def _seed_of(self, step: int) -> str:
        """An episode's randomness depends on its task and sample beside this, on no rank and on no other episode."""
        return f"{self._seed}/{step}"
