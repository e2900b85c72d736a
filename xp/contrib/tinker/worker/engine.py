"""Generates turns with a sampling client of the service: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from xp.contrib.tinker.worker.service import Service, fault_of
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Done,
    GeneratedTurn,
    GenerationRequest,
    Opening,
    RequestEngine,
)

MOST_SEED: Final = 2**31
"""SkyRL's seeds have 32 bits."""


class ServiceEngine(RequestEngine):
    """The engine of a service, which forms its own batches.

    Args:
        service, sampler: the connection, and the client with the policy's weights.
        opening, end_ids, sampling, seed, is_stop: see EpisodeEngine.
    """

    def __init__(
        self,
        service: Service,
        sampler: Any,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool],
    ) -> None:
        super().__init__(opening, end_ids, sampling, seed, is_stop)
        self._service = service
        self._sampler = sampler
        self._stop = list(end_ids)

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Sends one request; the SDK retries it."""
        from tinker.types import ModelInput, SamplingParams

        parameters = SamplingParams(
            max_tokens=request.max_tokens,
            seed=request.seed % MOST_SEED,
            stop=self._stop,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k or -1,
        )
        used = self._service.used
        used.add(prompt=len(request.ids))

        def ended(future: Any) -> None:
            try:
                (sequence,) = future.result().sequences
            except Exception as error:  # whatever the SDK raises ends the play
                done(fault_of("a sample", error))
                return
            used.add(sampled=len(sequence.tokens))
            done(GeneratedTurn(sequence.tokens, sequence.logprobs))

        prompt = ModelInput.from_ints(list(request.ids))
        self._sampler.sample(prompt, 1, parameters).add_done_callback(ended)
