"""What vLLM and SGLang cannot do, found in their code: proofs of refusals that are the same on every trainer."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, lacks, package
from xp.lib.models.network import HEAD_COUNTS, WITH_HEADS

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


@needs_vllm
def test_vllms_processor_leaves_pixels_as_whole_numbers() -> None:
    """Its network of Qwen2-VL normalizes them; SkyRL's own generator gives the update those of the processor."""
    for name in ("qwen2_vl", "qwen2_5_vl"):
        place = vllm(f"model_executor/models/{name}.py")
        assert has(place, "supports_mm_device_do_normalize = True")
    assert has(
        vllm("config/model.py"),
        "mm_device_do_normalize = ( self._model_info.supports_mm_device_do_normalize",
    )
    if find_spec("skyrl") is not None:
        place = package("skyrl") / "train/generators/skyrl_vlm_generator.py"
        assert has(place, 'pixel_values = mm_kwargs["pixel_values"]')


@needs_sglang
def test_sglangs_guessed_tokens_have_no_min_p() -> None:
    assert lacks(package("sglang") / "srt/speculative/eagle_info.py", "min_p")


@needs_vllm
def test_engines_divide_attention_by_heads() -> None:
    """SGLang's networks have the same assertions (tests below)."""
    assert has(vllm("config/model.py"), "must be divisible by tensor parallel size")
    assert has(
        vllm("model_executor/models/qwen3.py"),
        "assert self.total_num_kv_heads % tp_size == 0",
        "assert tp_size % self.total_num_kv_heads == 0",
    )


@needs_sglang
def test_sglang_divides_attention_by_heads() -> None:
    assert has(
        package("sglang") / "srt/models/qwen3.py",
        "assert self.total_num_heads % attn_tp_size == 0",
        "assert self.total_num_kv_heads % attn_tp_size == 0",
        "assert attn_tp_size % self.total_num_kv_heads == 0",
    )


@needs_vllm
def test_flash_attention_needs_ampere() -> None:
    assert has(
        vllm("v1/attention/backends/flash_attn.py"), "return capability >= DeviceCapability(8, 0)"
    )


def families(code: str) -> set[str]:
    """Families that a function compares a configuration's model_type with."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".model_type"):
            names |= {
                part.value
                for other in node.comparators
                for part in ast.walk(other)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    return names


@needs_vllm
def test_vllm_knows_these_families_heads() -> None:
    """Those of `hf_config_override`, without names of heads that are checkpoints of their own."""
    content = vllm("config/speculative.py").read_text()
    tree = ast.parse(content)
    (override,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "hf_config_override"
    )
    known = families(ast.unparse(override))
    alone = {name for name in known if name.endswith("_mtp") or "assistant" in name}
    # A DeepSeek of this version has heads of another kind; MiMo is known by its class.
    assert known - alone - {"deepseek_v41"} <= {*WITH_HEADS}
    assert {*WITH_HEADS} - known <= {"glm4_moe", "glm4_moe_lite", "glm_ocr", "mimo", "mimo_v2"} | {
        "bailing_hybrid",
        "exaone4_5",
        "minimax_m3_vl",
    }
    for family in ("Glm4Moe", "Glm4MoeLite", "GlmOcr", "MiMo", "MiMoV2", "Exaone4_5"):
        assert family in content
    for key in HEAD_COUNTS:
        assert key in content


@needs_vllm
def test_vllms_server_asks_for_no_key_by_default() -> None:
    assert has(
        vllm("entrypoints/serve/middleware/register.py"),
        "if tokens := [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]:",
    )


@needs_sglang
def test_sglangs_server_asks_for_no_key_by_default() -> None:
    assert has(
        package("sglang") / "srt/server_args.py",
        'api_key: A[ Optional[str], "Set API key of the server. It is also used in the OpenAI API compatible server.",'
        " ] = None",
    )


@needs_sglang
def test_sglang_loads_an_update_into_its_draft() -> None:
    assert has(
        package("sglang") / "srt/speculative/eagle_worker_v2.py",
        "self.draft_worker.draft_runner.update_weights_from_tensor(",
        "self.target_worker.model_runner.update_weights_from_tensor(",
    )


@needs_sglang
def test_sglang_pins_the_memory_of_adapters() -> None:
    """Which needs a GPU's driver."""
    assert has(package("sglang") / "srt/lora/layers.py", "pin_memory=True")


@needs_sglang
def test_sglang_answers_no_prompt_logprobs() -> None:
    assert lacks(package("sglang") / "srt/entrypoints/openai", "prompt_logprobs")
