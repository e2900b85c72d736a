"""What TRL sends vLLM of a model with a vision part, and that no engine samples the token of a picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from tests.support.http_server import Reply, Request, http_server
from tests.support.sections import run_spec, sampling_of
from tests.support.tiny_media import FAMILIES, media_model
from xp.backends.trl.worker.colocated import ColocatedEngine, set_vllm_arguments
from xp.backends.trl.worker.generation import send_text_alone
from xp.backends.trl.worker.lora import check_targets, merged_weights, start_policy
from xp.errors import XpError
from xp.lib.models.weights import tensors_of
from xp.spec import DType, LoraSpec
from xp.spec.model import Images
from xp.worker.engines.completions import CompletionClient
from xp.worker.engines.conversation import GenerationRequest, Opening
from xp.worker.engines.sglang import SGLangClient
from xp.worker.media import load_network, media_names, placeholder_ids

QWEN: Final = {
    "model.visual.": "visual.",
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
}
VLLM_PREFIXES: Final[Mapping[str, Mapping[str, str]]] = {
    "qwen3_vl": QWEN,
    "qwen3_5": QWEN,
    "gemma3": {
        "model.language_model.": "language_model.model.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        "lm_head.": "language_model.lm_head.",
    },
}
"""Family -> beginnings of names that vLLM 0.30 replaces (`hf_to_vllm_mapper` of qwen3_vl.py, which qwen3_5.py takes
over, and gemma3_mm.py)."""
SAMPLING: Final = sampling_of(100, 5, 12)
LORA: Final = LoraSpec(rank=4, alpha=8.0, dropout=0.0, target_modules=None)


def in_vllm(family: str, name: str) -> str:
    """The name of vLLM's own parameter, as its WeightsMapper makes it: of the first beginning that the name has."""
    for old, new in VLLM_PREFIXES[family].items():
        if name.startswith(old):
            return name.replace(old, new, 1)
    return name


def trl_generation(model: Any) -> Any:
    """TRL's own engine code around a model, without vLLM."""
    from trl.generation.vllm_generation import VLLMGeneration

    generation = object.__new__(VLLMGeneration)
    generation.model = model
    generation.enable_sleep_mode = False
    generation._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda _: nullcontext())
    return generation


@pytest.mark.parametrize("family", FAMILIES)
def test_trl_sends_the_text_under_the_names_that_vllm_takes(family: str, tmp_path: Path) -> None:

    start = media_model(family, tmp_path / family)
    model, _ = start_policy(str(start), run_spec().model)
    frozen = media_names(model)
    generation = trl_generation(model)
    everything = {in_vllm(family, name) for name, _ in generation._iter_named_params()}
    assert everything == {in_vllm(family, name) for name in tensors_of(start)}
    send_text_alone(generation, frozen, sees=False)
    sent = dict(generation._iter_named_params())
    assert {in_vllm(family, name) for name in sent} == {
        name for name in everything if name.startswith("language_model.")
    }
    assert sent.keys() == {name for name, one in model.named_parameters() if one.requires_grad}


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_are_merged_into_the_same_names(family: str, tmp_path: Path) -> None:
    from peft import get_peft_model

    start = media_model(family, tmp_path / family)
    base, adapters = start_policy(
        str(start), run_spec(model__lora=LORA, model__dtype=DType.FLOAT32).model
    )
    plain = {name for name, _ in base.named_parameters()}
    frozen = media_names(base)
    model = get_peft_model(base, adapters)
    assert media_names(model) == frozen
    generation = trl_generation(model)
    generation._iter_named_params = lambda: merged_weights(model)
    send_text_alone(generation, frozen, sees=False)
    assert {name for name, _ in generation._iter_named_params()} == plain - frozen


def test_an_engine_that_sleeps_gets_the_text_alone(tmp_path: Path) -> None:
    """It is loaded without the other parts, and loses nothing of them."""
    import torch

    model = load_network(media_model("qwen3_vl", tmp_path / "start"), torch.float32)
    generation = trl_generation(model)
    generation.enable_sleep_mode = True
    send_text_alone(generation, media_names(model), sees=False)
    assert media_names(model).isdisjoint(name for name, _ in generation._iter_named_params())


@pytest.mark.parametrize("sleeps", [True, False])
def test_an_engine_that_reads_pictures_gets_all_weights_if_it_loses_them(
    sleeps: bool, tmp_path: Path
) -> None:
    import torch

    model = load_network(media_model("qwen3_vl", tmp_path / "start"), torch.float32)
    generation = trl_generation(model)
    generation.enable_sleep_mode = sleeps
    frozen = media_names(model)
    send_text_alone(generation, frozen, sees=True)
    sent = {name for name, _ in generation._iter_named_params()}
    assert sent & frozen == (frozen if sleeps else set())


def test_trls_engine_is_loaded_without_the_parts_for_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from trl.generation import vllm_generation

    monkeypatch.setattr(vllm_generation, "LLM", dict, raising=False)
    set_vllm_arguments("float32", None)
    engine: Any = vllm_generation.LLM
    assert engine(model="m") == {"model": "m", "dtype": "float32", "language_model_only": True}
    monkeypatch.setattr(vllm_generation, "LLM", dict)
    set_vllm_arguments("float32", Images(max_pixels=784, per_episode=3))
    engine = vllm_generation.LLM
    assert engine(model="m")["limit_mm_per_prompt"] == {"image": 3, "video": 0}
    assert "language_model_only" not in engine(model="m")


def test_a_layer_of_the_vision_part_is_no_target(tmp_path: Path) -> None:
    import torch

    model = load_network(media_model("qwen3_vl", tmp_path / "start"), torch.float32)
    with pytest.raises(XpError, match="linear_fc1 is no layer"):
        check_targets(model.config, LORA.model_copy(update={"target_modules": ("linear_fc1",)}))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_pictures_are_those_of_config_json(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    from xp.lib.models.files import config_of

    start = media_model(family, tmp_path / family)
    config = config_of(str(start), Path())
    assert config is not None
    assert placeholder_ids(config) == placeholder_ids(AutoConfig.from_pretrained(start))


def test_every_engine_is_told_never_to_sample_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/generate":
            return Reply({"meta_info": {"output_token_logprobs": [[-0.5, 3, None]]}})
        return Reply({"choices": [{"token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}]})

    request = GenerationRequest([7, 8], 3, 41)
    never = [90, 91]
    with http_server(answer) as server:
        for kind in (CompletionClient, SGLangClient):
            kind(server.url, SAMPLING, [2], "log", never=never).answer(request)
            kind(server.url, SAMPLING, [2], "log").answer(request)
    bodies = [one.json.get("sampling_params", one.json) for one in server.requests]
    biases = [body.get("logit_bias") for body in bodies]
    assert biases == [{"90": -100.0, "91": -100.0}, None] * 2
    added: list[Any] = []
    engine = ColocatedEngine(
        SimpleNamespace(
            tensor_parallel_size=1,
            llm=SimpleNamespace(
                llm_engine=SimpleNamespace(
                    add_request=lambda *words: added.append(words[2]),
                    has_unfinished_requests=lambda: False,
                )
            ),
        ),
        Opening([[7, 8]], ["a/0"], 1, lambda _: None),
        [2],
        SAMPLING,
        "1",
        never=never,
    )
    module = SimpleNamespace(SamplingParams=dict)
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=2))
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", kinds)
    engine.submit(request, lambda _: None)
    engine.step(is_live=True)
    assert added[0]["logit_bias"] == {90: -100.0, 91: -100.0}
