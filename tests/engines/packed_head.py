"""vLLM's extension of SkyRL's servers, with a fault: the head stays as it was packed when the model was loaded."""

from __future__ import annotations

from typing import Any

from xp.backends.skyrl.worker.rehearsal.extension import SkyRLExtension

__all__ = ["SkyRLExtension"]


def pack_the_head() -> None:
    """Let the head of models that are loaded from now on compute with a copy, as vLLM itself does on a CPU."""
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    plain = utils.dispatch_cpu_unquantized_gemm

    def packed(layer: Any, remove_weight: bool) -> None:
        plain(layer, remove_weight)
        if isinstance(layer, VocabParallelEmbedding):
            weight = layer.weight.detach().clone()
            layer.cpu_linear = lambda x, _, bias: (
                x @ weight.T if bias is None else x @ weight.T + bias
            )

    utils.dispatch_cpu_unquantized_gemm = packed


pack_the_head()
