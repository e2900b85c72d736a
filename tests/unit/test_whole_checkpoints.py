"""All weights that a config.json promises are in the checkpoint, or the plan and the training's stage say what is missing."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.lib.models.files import missing_parts
from xp.lib.models.weights import weight_faults
from xp.planning.refusals import check_model_files
from xp.worker.facts import check_weights

TINY = Path(__file__).parents[2] / "xp/worker/tiny"
SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "num_key_value_heads": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        **EXPERTS,
    },
}
LAYER = "model.layers.1"


def network(directory: Path, family: str) -> dict[str, Any]:
    """Writes a network with new weights, and a tokenizer; returns the weights by their names in the file."""
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **{**SMALL, **FAMILIES[family]})
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    shutil.copy(TINY / "tokenizer.json", directory)
    return dict(load_file(directory / "model.safetensors"))


def write(directory: Path, weights: dict[str, Any], kind: str) -> None:
    """Writes weights as safetensors, as one file of torch's, or as two with an index."""
    import torch
    from safetensors.torch import save_file

    (directory / "model.safetensors").unlink(missing_ok=True)
    if kind == "safetensors":
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    if kind == "bin":
        torch.save(weights, directory / "pytorch_model.bin")
        return
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    places = {name: names[number % 2] for number, name in enumerate(weights)}
    for file in names:
        part = {name: weights[name] for name in weights if places[name] == file}
        torch.save(part, directory / file)
    index = {"metadata": {}, "weight_map": places}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def told_by_stage(directory: Path) -> str:
    with pytest.raises(XpError) as caught:
        check_weights(directory)
    assert caught.value.code == ExitCode.PLAN
    return str(caught.value)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("qwen3_moe", "safetensors"), ("gpt_oss", "safetensors"), ("qwen3", "two files")],
)
def test_a_whole_checkpoint_has_no_fault(family: str, kind: str, tmp_path: Path) -> None:
    weights = network(tmp_path, family)
    write(tmp_path, weights | {"model.mtp.weight": weights["model.norm.weight"].clone()}, kind)
    check_weights(tmp_path)


@pytest.mark.parametrize(
    ("family", "kind", "missing", "words"),
    [
        ("qwen3", "bin", "self_attn", "self_attn.k_norm.weight and 5 more"),
        ("qwen3_moe", "bin", "mlp.experts.1.", "mlp.experts.1.down_proj.weight and 2"),
        ("qwen3_moe", "safetensors", "mlp.experts.1.up", "mlp.experts.1.up_proj.weight,"),
        ("qwen3_moe", "safetensors", "mlp.experts", "mlp.experts.down_proj and 1 more"),
        ("gpt_oss", "safetensors", "mlp.experts.down_proj_bias", "mlp.experts.down_proj_bias,"),
        ("deepseek_v3", "safetensors", "mlp.shared_experts.up", "mlp.shared_experts.up_proj.weig"),
    ],
)
def test_the_stage_names_the_first_weight_that_is_missing(
    family: str, kind: str, missing: str, words: str, tmp_path: Path
) -> None:
    weights = network(tmp_path, family)
    staying = {name: weights[name] for name in weights if not name.startswith(f"{LAYER}.{missing}")}
    assert len(staying) < len(weights)
    write(tmp_path, staying, kind)
    assert f"its weights lack {LAYER}.{words}" in told_by_stage(tmp_path)


def test_a_weight_of_another_shape_is_told_with_both(tmp_path: Path) -> None:
    weights = network(tmp_path, "qwen3")
    name = f"{LAYER}.input_layernorm.weight"
    write(tmp_path, weights | {name: weights[name][:5]}, "bin")
    assert f"{name} has the shape [5], not [32]" in told_by_stage(tmp_path)


def test_an_index_of_torch_files_of_which_one_is_not_there_is_told(tmp_path: Path) -> None:
    weights = network(tmp_path, "qwen3")
    write(tmp_path, weights, "two files")
    spec = compose(["model=hf", f"model.path={tmp_path}"])
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(XpError, match=r"has no pytorch_model-00002-of-00002\.bin"):
        check_model_files(spec)
    # A loader takes safetensors where both are there.
    write(tmp_path, weights, "safetensors")
    assert list(missing_parts(tmp_path)) == []


def snapshot(cache: Path, commit: str) -> Path:
    """A hub's model in the cache of its client, without any file yet."""
    repository = cache / "hub/models--Org--Tiny"
    place = repository / "snapshots" / commit
    place.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    return place


def test_the_plan_asks_transformers_of_a_snapshot_in_the_cache_as_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    place = snapshot(tmp_path, "1" * 40)
    weights = network(place, "qwen3")
    spec = compose(["model=hf", "model.path=Org/Tiny"])
    write(place, {name: weights[name] for name in weights if "k_norm" not in name}, "bin")
    with pytest.raises(XpError, match=r"model\.path=Org/Tiny: its weights lack") as caught:
        check_model_files(spec)
    assert caught.value.code == ExitCode.PLAN
    # Without weights it is downloaded.
    (place / "pytorch_model.bin").unlink()
    check_model_files(spec)


KINDS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "of no name": {"bits": 4},
}


@pytest.mark.parametrize(
    ("keys", "has_head", "words"),
    [
        ({"tie_word_embeddings": True}, True, "tie_word_embeddings is true"),
        ({"num_hidden_layers": 3}, False, "have no layer 2"),
        ({"tie_word_embeddings": False}, False, r"have no lm_head\.weight"),
        ({"tie_word_embeddings": False}, True, None),
    ],
)
def test_a_head_and_layers_are_those_of_the_config(
    keys: dict[str, Any], has_head: bool, words: str | None, tmp_path: Path
) -> None:
    weights = network(tmp_path, "qwen3")
    weights.pop("lm_head.weight", None)
    if has_head:
        weights["lm_head.weight"] = 2 * weights["model.embed_tokens.weight"]
    write(tmp_path, weights, "safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | keys))
    spec = compose(["model=hf", f"model.path={tmp_path}"])
    for check in (lambda: check_model_files(spec), lambda: check_weights(tmp_path)):
        with nullcontext() if words is None else pytest.raises(XpError, match=words):
            check()


@pytest.mark.parametrize(
    ("place", "kind", "backend"),
    [
        *(("quantization_config", kind, "trl") for kind in KINDS),
        ("quantization_config", "awq", "slime"),
        ("compression_config", "compressed-tensors", "trl"),
        ("text_config", "fp8", "slime"),
        ("text_config", "awq", "skyrl"),
    ],
)
def test_quantized_weights_of_every_kind_are_refused_where_no_trainer_unpacks_them(
    place: str, kind: str, backend: str, tmp_path: Path
) -> None:
    network(tmp_path, "qwen3")
    config = json.loads((tmp_path / "config.json").read_text())
    if place == "text_config":
        config = {"text_config": config | {"quantization_config": KINDS[kind]}}
    else:
        config[place] = KINDS[kind]
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen3"}))
    words = ["model=hf", f"model.path={tmp_path}", f"backend={backend}", "hardware=h100x8"]
    spec = compose(words)
    check_model_files(spec, trains=False)
    if backend == "slime" and kind == "fp8":  # which Slime's loader converts
        check_model_files(spec)
        return
    for check in (lambda: check_model_files(spec), lambda: check_weights(tmp_path)):
        with pytest.raises(XpError, match=f"weights are quantized .quantization_config, {kind}"):
            check()


def test_layers_of_a_part_for_sound_are_none_of_the_text_network(tmp_path: Path) -> None:
    weights = network(tmp_path, "qwen3")
    sound = {"audio_tower.layers.2.fc1.weight": weights["model.norm.weight"].clone()}
    write(tmp_path, weights | sound, "safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "audio_config": {"layers": 3}}
    assert any("have no layer 2" in fault for fault in weight_faults(tmp_path, config))
