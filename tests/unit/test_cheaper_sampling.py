"""FP8, expert parallelism and speculative decoding of the engine: native keys, refusals before GPUs, bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.refused_fields import DENSE, SERVER, refused
from xp.composition import compose
from xp.lib.models.files import known_config
from xp.planning.engine_arguments import vllm_server
from xp.planning.memory.estimate import estimate
from xp.planning.memory.fit import memory_lines

CORRECTED = "algorithm.importance_correction=token_truncate"
FP8 = ("backend.engine.quantization=fp8", "backend.engine.kv_cache_dtype=fp8", CORRECTED)
EXPERTS = ("env=whodunit", "hardware=h200x8", "model=qwen3-30b-a3b")
HEADS = ("env=whodunit", "hardware=h200x8", "hardware.num_nodes=4", "model=glm-4.5-air")
SKYRL = ("backend=skyrl", "backend.parallel.strategy=megatron")
MTP = "backend.engine.speculative={method: mtp, model: null, num_tokens: 3}"
DRAFT = "backend.engine.speculative={method: draft, model: Qwen/Qwen3-0.6B, num_tokens: 3}"


def test_trls_server_gets_its_arguments() -> None:
    words = (*EXPERTS, *SERVER, *FP8, "backend.engine.expert_parallel=4", DRAFT)
    assert refused(*words) == {}
    spec = compose([*words])
    arguments = " ".join(vllm_server(spec, 4, takes_weights=True).arguments)
    assert (
        "--quantization fp8 --kv-cache-dtype fp8 --enable-expert-parallel --speculative-config"
        in arguments
    )
    draft = {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}
    assert json.dumps(draft) in vllm_server(spec, 4, takes_weights=True).arguments
    evaluation = " ".join(vllm_server(spec, 4, takes_weights=False).arguments)
    assert "--quantization fp8 --kv-cache-dtype fp8 --enable-expert-parallel" in evaluation
    assert "speculative" not in evaluation


# Of Qwen3-4B: parameters of the embedding (tied, with the last norm) and of a layer, layers, numbers of keys and values
# of a token: 2 x 8 heads x 128.
EMBEDDING = 151_936 * 2560 + 2560
LAYER = 100_930_816
LAYERS = 36
CACHE = 2 * 8 * 128
SHARE = 0.5 * 80 * 2**30
ROOM = 2e9


def room(*words: str) -> tuple[float, float]:
    """Bytes for an engine's KV cache, and of an episode's."""
    spec = compose([*DENSE, *SERVER, CORRECTED, *words])
    result = estimate(spec)
    longest = spec.training.max_prompt_tokens + spec.training.max_response_tokens
    return result.kv_room, result.kv_episode / longest


def test_fp8_halves_the_linear_layers_and_the_cache() -> None:
    whole = SHARE - ROOM - 2 * (EMBEDDING + LAYERS * LAYER)
    assert room() == (pytest.approx(whole), 2 * LAYERS * CACHE)
    assert room(FP8[0]) == (pytest.approx(whole + LAYERS * LAYER), 2 * LAYERS * CACHE)
    assert room(FP8[1]) == (pytest.approx(whole), LAYERS * CACHE)


def test_a_draft_is_counted_from_its_config(tmp_path: Path) -> None:
    config = known_config("Qwen/Qwen3-0.6B")
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = f"backend.engine.speculative={{method: draft, model: {tmp_path}, num_tokens: 3}}"
    (before, of_token) = room()
    (after, of_both) = room(draft)
    # Qwen3-0.6B: 596,049,920 parameters, as published; its cache is of 28 layers.
    assert (before - after, of_both - of_token) == (pytest.approx(2 * 596_049_920), 2 * 28 * CACHE)
    unknown = DRAFT.replace("Qwen/Qwen3-0.6B", "Org/Unknown")
    assert [
        line
        for line in memory_lines(compose([*DENSE, *SERVER, unknown]))
        if "draft not counted" in line
    ]


def test_the_heads_and_divided_experts_are_counted() -> None:
    def of_glm(*words: str) -> float:
        return estimate(
            compose([*HEADS, *SKYRL, "backend.engine.tensor_parallel=8", *words])
        ).kv_room

    # GLM-4.5-Air: hidden 4096, 96 query and 8 key-value heads of 128 with biases, a router, 128 experts of 1408 and one
    # that all tokens pass.
    layer = 4096 * (96 + 16) * 128 + 96 * 128 * 4096 + (96 + 16) * 128 + 4096 * 128 + 2 * 4096
    head = layer + (128 + 1) * 3 * 4096 * 1408 + 2 * 4096**2
    assert of_glm() - of_glm(MTP) == pytest.approx(2 * head)
    # TRL's server has two engines of two accelerators each: divided among all four, an engine has half of the experts.
    words = (*EXPERTS, *SERVER, "backend.engine.tensor_parallel=2", CORRECTED)
    split = estimate(compose([*words])).kv_room
    experts = 48 * 128 * 3 * 2048 * 768
    whole = estimate(compose([*words, "backend.engine.expert_parallel=4"])).kv_room
    assert whole - split == pytest.approx(2 * experts / 2)
