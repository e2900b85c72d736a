"""What vLLM and SGLang cannot do, found in their code: proofs of refusals that are the same on every trainer."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, lacks, package

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not in this environment: make test-vllm"
)
needs_sglang = pytest.mark.skipif(
    find_spec("sglang") is None, reason="SGLang is not in this environment: make test-slime"
)


def vllm(file: str) -> Path:
    return package("vllm") / file


@needs_vllm
def test_fp8_weights_are_made_of_half_precision() -> None:
    assert has(
        vllm("model_executor/layers/quantization/fp8.py"), "return [torch.bfloat16, torch.half]"
    )


@needs_vllm
def test_attention_over_fp8_needs_ampere() -> None:
    """FlashAttention and FlashInfer begin with Ampere; Triton's kernel over FP8 needs a later card still."""
    place = "v1/attention/backends"
    for name in ("flash_attn", "flashinfer"):
        assert has(vllm(f"{place}/{name}.py"), "return capability >= DeviceCapability(8, 0)")
    assert has(vllm(f"{place}/triton_attn.py"), "current_platform.has_device_capability(89)")


@needs_vllm
def test_vllms_log_probabilities_are_cut() -> None:
    """The sampler that cuts by top_k and top_p returns them."""
    assert has(
        vllm("v1/sample/sampler.py"),
        "random_sampled, processed_logprobs = self.topk_topp_sampler(",
    )


@needs_vllm
def test_guessed_tokens_have_no_min_p() -> None:
    assert has(
        vllm("sampling_params.py"),
        '"The min_p and logit_bias sampling parameters "'
        ' "are not yet supported with speculative decoding."',
    )


@needs_sglang
def test_sglangs_guessed_tokens_have_no_min_p() -> None:
    assert lacks(package("sglang") / "srt/speculative/eagle_info.py", "min_p")
