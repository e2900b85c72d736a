"""What vLLM and SGLang cannot do, found in their code: proofs of refusals that are the same on every trainer."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, in_table, package
from xp.lib.models.network import HEAD_COUNTS, WITH_HEADS

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not in this environment: make test-vllm"
)


def vllm(file: str) -> Path:
    return package("vllm") / file


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


globals().update(in_table("engines"))
