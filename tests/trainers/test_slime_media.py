"""Checkpoints with parts for pictures under Slime: which it takes, their weights there and back, and what is sampled."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.limits.words import has, package
from tests.support.families import GATED_DELTA, QWEN_VISION, SIGLIP_VISION, TEXT
from tests.support.tiny_media import media_model
from tests.trainers.slime_setup import needs_slime
from xp.backends.slime.worker.text_network import (
    STACKED,
    StackedReader,
    adapt,
    complete,
    family_of,
    is_adapted,
)
from xp.errors import ExitCode, XpError
from xp.fields.slime_media import LOADED_CHECKPOINTS, TRIED_CHECKPOINTS
from xp.lib.models.network import TEXT_TWINS, text_part

pytestmark = needs_slime
TINY_TEXT = {**TEXT, "vocab_size": 96, "pad_token_id": 0, "tie_word_embeddings": False}
EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5": {"text_config": {**TINY_TEXT, **GATED_DELTA}, "vision_config": QWEN_VISION},
    "qwen3_5_moe": {
        "text_config": {
            **TINY_TEXT,
            **GATED_DELTA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        "vision_config": QWEN_VISION,
    },
    "qwen3_vl": {
        "text_config": {**TINY_TEXT, "rope_parameters": {**ROPE, "mrope_section": [4, 2, 2]}},
        "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0]},
    },
    "glm4v": {
        "text_config": {
            **TINY_TEXT,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        "vision_config": QWEN_VISION,
    },
    "glm4v_moe": {
        "text_config": {
            **TINY_TEXT,
            **EXPERTS,
            "attention_bias": True,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        "vision_config": QWEN_VISION,
    },
    "internvl": {
        "text_config": {**TINY_TEXT, "model_type": "qwen3"},
        "vision_config": {**SIGLIP_VISION, "image_size": [28, 28], "patch_size": [14, 14]},
    },
}
"""Checkpoint -> its sections; Kimi K2.5, of which transformers has no class, is written by `kimi_k25`."""
TEXT_FAMILY = {
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "internvl": "qwen3",
    "kimi_k25": "kimi_k2",
    "qwen3_vl": "qwen3",
}
"""Of the ten families of 2026: those whose text network Slime's own code of another family takes."""
OWN = ("qwen3_5", "qwen3_5_moe")
"""Those that Slime loads itself: Qwen3.5 and 3.6."""
REFUSED = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "mistral3": "mistral",
    "mistral3 of Ministral 3": "ministral3",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
"""Those whose text network Slime has no code for; Qwen3-VL's experts are of another layout on the disk."""


def untrained(kind: str, directory: Path) -> Path:
    """The tiny checkpoint as transformers writes it, with a processor's file."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    if kind == "kimi_k25":
        return kimi_k25(directory)
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **CONFIGS[kind], tie_word_embeddings=False)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if weight.dim() > 1 or name.endswith("bias"):
            weight.data.normal_(0, 0.1)
    model.save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text("{}\n")
    return directory


def kimi_k25(directory: Path) -> Path:
    """A text model with latent attention, under the names and in the config.json of Kimi K2.5."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, DeepseekV3Config

    sizes = {name: value for name, value in TINY_TEXT.items() if name != "head_dim"}
    config = DeepseekV3Config(
        **sizes,
        **EXPERTS,
        **LATENT,
        n_group=1,
        topk_group=1,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)
    weights = load_file(directory / "model.safetensors")
    whole = {f"language_model.{name}": weight for name, weight in weights.items()}
    whole["vision_tower.patch_embed.proj.weight"] = torch.randn(4, 4)
    save_file(whole, directory / "model.safetensors", {"format": "pt"})
    text = json.loads((directory / "config.json").read_text()) | {"model_type": "kimi_k2"}
    (directory / "config.json").write_text(
        json.dumps({"model_type": "kimi_k25", "text_config": text, "vision_config": {"depth": 1}})
    )
    (directory / "preprocessor_config.json").write_text("{}\n")
    return directory


@pytest.fixture(autouse=True)
def slimes_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has Slime's tables as they are in a new process."""
    from slime.backends.megatron_utils import hf_to_megatron, megatron_to_hf

    monkeypatch.setattr(hf_to_megatron, "_LOADERS", dict(hf_to_megatron._LOADERS))
    monkeypatch.setattr(megatron_to_hf, "_convert_to_hf_core", megatron_to_hf._convert_to_hf_core)


def config_at(directory: Path) -> Any:
    """The configuration as Slime's AutoConfig loads it; Kimi's own class is on the hub."""
    from transformers import AutoConfig, DeepseekV3Config

    config = json.loads((directory / "config.json").read_text())
    if config["model_type"] != "kimi_k25":
        return AutoConfig.from_pretrained(directory)
    text = DeepseekV3Config.from_dict(config["text_config"])
    return SimpleNamespace(text_config=text, model_type="kimi_k25", tie_word_embeddings=False)


def in_megatron(text: Any) -> Iterator[str]:
    """Megatron's names of the parameters of a text network, with TransformerEngine's layers."""
    yield "embedding.word_embeddings.weight"
    yield "decoder.final_layernorm.weight"
    yield "output_layer.weight"
    num_experts = getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None)
    num_dense = text.num_hidden_layers
    if num_experts:
        num_dense = getattr(text, "first_k_dense_replace", 0)
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    for layer, kind in enumerate(kinds):
        parts = [*_attention(text, kind)]
        if layer < num_dense:
            parts += _dense(text)
        else:
            parts += _experts(text, num_experts)
        yield from (f"decoder.layers.{layer}.{part}" for part in parts)


def _attention(text: Any, kind: str) -> list[str]:
    if kind == "linear_attention":
        inner = ("A_log", "conv1d.weight", "dt_bias", "norm.weight", "out_proj.weight")
        inner += tuple(f"in_proj_{name}.weight" for name in ("a", "b", "qkv", "z"))
        names = ["input_layernorm.weight", *(f"linear_attn.{name}" for name in inner)]
    elif getattr(text, "kv_lora_rank", None):
        ups = ("linear_q_up_proj", "linear_kv_up_proj")
        names = [f"{up}.{end}" for up in ups for end in ("weight", "layer_norm_weight")]
        downs = ("linear_q_down_proj", "linear_kv_down_proj", "linear_proj")
        names += [f"{down}.weight" for down in downs]
        return ["input_layernorm.weight", *(f"self_attention.{name}" for name in names)]
    else:
        names = ["linear_qkv.weight", "linear_qkv.layer_norm_weight", "linear_proj.weight"]
        if text.model_type.startswith("qwen3"):
            names += ["q_layernorm.weight", "k_layernorm.weight"]
        if getattr(text, "attention_bias", False) or text.model_type == "glm4v_text":
            names.append("linear_qkv.bias")
    return [f"self_attention.{name}" for name in names]


def _dense(text: Any) -> list[str]:
    names = ["mlp.linear_fc1.layer_norm_weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight"]
    if text.model_type == "glm4v_text":
        names += ["post_self_attn_layernorm.weight", "post_mlp_layernorm.weight"]
    return names


def _experts(text: Any, num_experts: int) -> list[str]:
    names = ["pre_mlp_layernorm.weight", "mlp.router.weight"]
    names += [f"mlp.shared_experts.linear_fc{part}.weight" for part in (1, 2)]
    names.append(
        "mlp.shared_experts.gate_weight"
        if text.model_type.startswith("qwen3_5")
        else "mlp.router.expert_bias"
    )
    return names + [
        f"mlp.experts.linear_fc{part}.weight{expert}"
        for part in (1, 2)
        for expert in range(num_experts)
    ]


def there_and_back(start: Path, target: Path) -> None:
    """Slime's loader for each parameter of Megatron's, and its conversion of the same for an export and for SGLang."""
    from safetensors.torch import save_file
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS
    from slime.backends.megatron_utils.hf_to_megatron.common import SafetensorReader
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf

    config = config_at(start)
    text = config.text_config
    args = Namespace(
        hf_checkpoint=str(start),
        model_name=None,
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        num_query_groups=text.num_key_value_heads,
        kv_channels=getattr(text, "head_dim", None),
        q_lora_rank=getattr(text, "q_lora_rank", None),
    )
    adapt(args)
    reader = SafetensorReader(start)
    weights = {}
    for name in in_megatron(text):
        value = _LOADERS[config.model_type](name, reader, config)
        kind = args.model_name or type(config).__name__.lower()
        for theirs, weight in convert_to_hf(args, kind, f"module.module.{name}", value):
            weights[theirs] = weight.clone().contiguous()
    target.mkdir()
    (target / "config.json").write_bytes((start / "config.json").read_bytes())
    save_file(weights, target / "model-00001-of-00001.safetensors", {"format": "pt"})


def weights_of(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def check_whole(published: Path, start: Path) -> None:
    ours = weights_of(published)
    theirs = weights_of(start)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert (published / "preprocessor_config.json").is_file()
    index = json.loads((published / "model.safetensors.index.json").read_text())["weight_map"]
    assert index.keys() == theirs.keys()


@pytest.mark.parametrize("kind", OWN)
def test_slimes_own_class_has_the_text_alone(kind: str, tmp_path: Path) -> None:
    start = untrained(kind, tmp_path / "start")
    target = tmp_path / "export"
    there_and_back(start, target)
    assert not is_adapted(json.loads((start / "config.json").read_text()))
    assert not [name for name in weights_of(target) if "visual" in name]
    complete(target, start)
    check_whole(target, start)


def test_experts_of_the_hubs_layout_are_read_and_published_as_transformers_does(
    tmp_path: Path,
) -> None:
    """The hub's Qwen3.5 has one matrix of all experts; Slime and transformers write one for each."""
    from safetensors.torch import save_file
    from transformers import AutoModelForImageTextToText

    start = untrained("qwen3_5_moe", tmp_path / "start")
    alone = weights_of(start)
    hub = dict(alone)
    reader = StackedReader(WeightsReader(alone))
    for layer in range(4):
        place = f"model.language_model.layers.{layer}.mlp.experts"
        for part in STACKED:
            hub[f"{place}.{part}"] = reader.get_tensor(f"{place}.{part}")
        for name in [name for name in hub if re.fullmatch(rf"{re.escape(place)}\.\d+\..*", name)]:
            del hub[name]
    save_file(hub, start / "model.safetensors", {"format": "pt"})
    there_and_back(start, tmp_path / "export")
    complete(tmp_path / "export", start)
    published = weights_of(tmp_path / "export")
    assert published.keys() == alone.keys()
    assert all(published[name].equal(alone[name]) for name in alone)
    _, info = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "export", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


class WeightsReader(dict[str, Any]):
    """Weights in memory, with the method of Slime's reader."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def get_tensor(self, name: str) -> Any:
        return self[name]


@pytest.mark.parametrize("kind", TEXT_FAMILY)
def test_a_text_network_is_read_and_written_as_its_family(kind: str, tmp_path: Path) -> None:
    start = untrained(kind, tmp_path / "start")
    target = tmp_path / "export"
    there_and_back(start, target)
    # SGLang's class of the checkpoint loads these names from the disk, and takes them in an update.
    text = weights_of(target)
    assert text.keys() < weights_of(start).keys()
    complete(target, start)
    check_whole(target, start)


def test_the_ten_families_are_taken_as_slimes_own_tables_say() -> None:
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS

    assert set(LOADED_CHECKPOINTS.values()) == set(OWN)
    assert set(OWN) < _LOADERS.keys()
    assert set(TRIED_CHECKPOINTS) < set(TEXT_FAMILY)
    assert _LOADERS.keys().isdisjoint(TEXT_FAMILY)
    assert set(TEXT_FAMILY.values()) < _LOADERS.keys()
    assert _LOADERS.keys().isdisjoint(REFUSED.values())


@pytest.mark.parametrize("kind", REFUSED)
def test_a_text_network_that_slime_has_no_code_for_is_refused(kind: str, tmp_path: Path) -> None:
    """By Slime's own loader, and before it by xp."""
    from slime.backends.megatron_utils.hf_to_megatron import load_hf_weights

    model_type = kind.partition(" ")[0]
    text = {"model_type": REFUSED[kind], **TEXT}
    config = {"model_type": model_type, "text_config": text, "vision_config": SIGLIP_VISION}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"Unsupported HuggingFace model type: {model_type}"):
        load_hf_weights(None, None, tmp_path)
    with pytest.raises(XpError, match=f"{model_type}, nor for its text network") as caught:
        adapt(Namespace(hf_checkpoint=str(tmp_path)))
    assert caught.value.code is ExitCode.PLAN


def test_the_experts_of_qwen3_vl_are_of_another_layout(tmp_path: Path) -> None:
    """Slime's reader of experts takes one matrix for each; the checkpoint has all in one, transposed."""
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS
    from slime.backends.megatron_utils.hf_to_megatron.common import SafetensorReader
    from transformers import AutoConfig, AutoModelForImageTextToText

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    sections = CONFIGS["qwen3_vl"]
    text = {**sections["text_config"], **experts}
    config = AutoConfig.for_model(
        "qwen3_vl_moe", text_config=text, vision_config=sections["vision_config"]
    )
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(KeyError, match=re.escape("experts.0.gate_proj.weight")):
        _LOADERS["qwen3_moe"](
            "decoder.layers.0.mlp.experts.linear_fc1.weight0", SafetensorReader(tmp_path), config
        )


def test_slimes_own_conversion_of_qwen3_vl_gives_the_same(tmp_path: Path) -> None:
    """It has one for the way back, and no loader."""
    from slime.backends.megatron_utils.megatron_to_hf import convert_qwen3vl_to_hf

    start = untrained("qwen3_vl", tmp_path / "start")
    there_and_back(start, tmp_path / "export")
    text = config_at(start).text_config
    args = Namespace(
        hidden_size=text.hidden_size,
        num_attention_heads=text.num_attention_heads,
        num_query_groups=text.num_key_value_heads,
        kv_channels=text.head_dim,
    )
    weights = weights_of(tmp_path / "export")
    from slime.backends.megatron_utils.hf_to_megatron import _LOADERS
    from slime.backends.megatron_utils.hf_to_megatron.common import SafetensorReader

    loader = _LOADERS["qwen3_vl"]
    reader = SafetensorReader(start)
    theirs = {}
    for name in in_megatron(text):
        value = loader(name, reader, config_at(start))
        theirs |= dict(convert_qwen3vl_to_hf(args, f"module.module.{name}", value))
    assert weights.keys() == theirs.keys()
    assert all(weights[name].equal(theirs[name]) for name in weights)


@pytest.mark.parametrize("kind", ["glm4v", "glm4v_moe", "qwen3_vl"])
def test_a_twin_computes_the_same_of_text(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    start = untrained(kind, tmp_path)
    config = config_at(start)
    whole = AutoModelForImageTextToText.from_pretrained(start, dtype=torch.float32).eval()
    sizes = config.text_config.to_dict()
    family = TEXT_TWINS[sizes.pop("model_type")]
    assert family == family_of(json.loads((start / "config.json").read_text()))
    alone = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes), dtype=torch.float32)
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    ids = torch.randint(
        1,
        90,
        (2, 40),
        generator=torch.Generator().manual_seed(1),
    )
    with torch.inference_mode():
        ours = alone.eval()(input_ids=ids).logits.log_softmax(-1)
        theirs = whole(input_ids=ids).logits.log_softmax(-1)
    assert float((ours - theirs).abs().max()) < 1e-5


def test_sglang_has_a_class_of_each_checkpoint_that_was_tried() -> None:
    models = package("sglang") / "srt/models"
    for kind in (*TRIED_CHECKPOINTS, *OWN):
        file = models / f"{kind.removesuffix('_moe') if kind in OWN else kind}.py"
        assert has(file, "ForConditionalGeneration", "def load_weights(self, weights")
    # InternVL's class is that of its older configuration, whose text section has another name.
    assert has(models / "internvl.py", "EntryClass = InternVLChatModel")


def test_a_checkpoint_of_text_is_left_to_slime(tmp_path: Path) -> None:
    from slime.backends.megatron_utils import hf_to_megatron

    before = dict(hf_to_megatron._LOADERS)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", **TEXT}))
    args = Namespace(hf_checkpoint=str(tmp_path), model_name=None)
    adapt(args)
    assert (args.model_name, hf_to_megatron._LOADERS) == (None, before)


def test_placeholders_of_pictures_are_never_sampled(tmp_path: Path) -> None:
    """SGLang's own class of sampling parameters takes the biases."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    from tests.trainers.slime_setup import worker_config
    from xp.backends.slime.worker.rollout_process import Worker

    config = worker_config(tmp_path)
    model = media_model("qwen3_vl", tmp_path / "media")
    told = json.loads((model / "config.json").read_text())
    spec = config.spec.model_copy(
        update={"model": config.spec.model.model_copy(update={"path": str(model)})}
    )
    mix = SimpleNamespace(max_sessions=lambda: 1)
    worker = Worker(config.__class__(**{**vars(config), "spec": spec}), mix, None)  # type: ignore[arg-type]
    biases = json.loads(json.dumps(worker.biases))["logit_bias"]
    assert {int(token) for token in biases} >= {told["image_token_id"], told["video_token_id"]}
    assert set(biases.values()) == {-100}
    parameters = SamplingParams(logit_bias=biases)
    parameters.verify(text_part(told)["vocab_size"])
    assert Worker(config, mix, None).biases == {}  # type: ignore[arg-type]
