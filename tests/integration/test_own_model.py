"""`model=hf model.path=...`: any causal model, its name, network and context read from its own config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.http_server import Reply, Request, http_server
from tests.support.own_model import SMOLLM2, fault, model_at
from tests.support.own_model import no_hub as no_hub
from xp.__main__ import main
from xp.composition import compose
from xp.composition.model import name_of
from xp.composition.plan_keys import PlanKeys
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode
from xp.lib.models.clock import TEMPLATES
from xp.lib.models.network import COUNTED, RECURRENT, TEXT_TWINS, network_of, stated
from xp.planning.memory.fit import memory_lines
from xp.planning.memory.weights import peft_adapters, weights_of
from xp.planning.plan import build_plan
from xp.spec import Architecture, LoraSpec


def test_a_directory_says_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_at(tmp_path / "SmolLM2_mine")
    monkeypatch.chdir(tmp_path)
    spec = compose(["model=hf", "model.path=./SmolLM2_mine"])
    assert spec.model.path == str(tmp_path / "SmolLM2_mine")  # stages run elsewhere
    assert spec.model.name == "smollm2_mine"
    assert spec.model.max_context_tokens == 8192
    assert spec.model.architecture == compose(["model=smollm2-135m-instruct"]).model.architecture
    assert weights_of(spec.model.architecture).total == 134_515_008  # type: ignore[arg-type]


def test_a_model_in_the_cache_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model_at(tmp_path / "models--Org--My-Model" / "snapshots" / "abc")
    (tmp_path / "models--Org--My-Model" / "refs").mkdir()
    (tmp_path / "models--Org--My-Model" / "refs" / "main").write_text("abc")
    spec = compose(["model=hf", "model.path=Org/My-Model"])
    assert spec.model.name == "my-model"
    assert spec.model.path == "Org/My-Model"
    assert spec.model.architecture is not None


@pytest.mark.parametrize("backend", ["trl", "skyrl", "slime"])
def test_a_network_that_is_not_the_models_is_refused_on_every_backend(
    backend: str, tmp_path: Path
) -> None:
    place = model_at(tmp_path / "SmolLM2")
    chosen = [
        "model=hf",
        f"model.path={place}",
        f"backend={backend}",
        "hardware=h100x8",
        "env=whodunit",
    ]
    known = compose(chosen).model.architecture
    assert known is not None
    wrong = json.dumps({**known.model_dump(mode="json"), "num_layers": 31}).replace('"', "")
    said = fault(*chosen, f"model.architecture={wrong}")
    assert (
        f"num_layers is 31, and config.json has 30 in {place}; correct it, or leave model.architecture out"
        in said
    )


def test_the_hub_is_asked_once_and_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Reply:
        return (
            Reply(SMOLLM2)
            if request.path == "/Org/Model/resolve/main/config.json"
            else Reply(status=404)
        )

    with http_server(answer) as server:
        monkeypatch.setattr("xp.lib.models.files.HUB_TIMEOUT_S", DEADLINE_S)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        known = [compose(["model=hf", "model.path=Org/Model"]) for _ in range(2)]
        unknown = compose(["model=hf", "model.path=Org/Other", "hardware=a100x1", "env=whodunit"])
    assert known[0].model.architecture is not None
    assert [f"{one.path} {one.headers.get('authorization')}" for one in server.requests] == [
        path
        for name, files in (("Model", ("config.json", *TEMPLATES)), ("Other", ("config.json",)))
        for path in (
            f"/api/models/Org/{name}/revision/main None",
            *(f"/Org/{name}/resolve/main/{file} None" for file in files),
        )
    ]
    assert unknown.model.architecture is None
    assert "the config.json of Org/Other is neither on this machine" in memory_lines(unknown)[0]


def test_an_options_name_never_stands_for_another_network(tmp_path: Path) -> None:
    other = model_at(tmp_path / "other", hidden_size=640)
    same = model_at(tmp_path / "same")
    text = fault("model=smollm2-135m-instruct", f"model.path={other}")
    assert (
        f"model.path={other}: not the network of model=smollm2-135m-instruct: hidden_size is 576"
        in text
    )
    assert f"set model=hf model.path={other}" in text
    assert compose(["model=smollm2-135m-instruct", f"model.path={same}"]).model.path == str(same)
    assert "set model=hf model.path=Org/Else" in fault("model=qwen3-4b", "model.path=Org/Else")
    assert f"set model=hf model.path={same}" in fault(f"model.path={same}")


def test_an_absolute_path_without_a_model_is_refused_here(tmp_path: Path) -> None:
    for path in (tmp_path / "nope", tmp_path):
        text = fault("model=hf", f"model.path={path}")
        assert f"model.path={path}: no such directory with a config.json" in text
    assert "no such directory" in fault("model=hf", "model.path='~/no such/model'")
    elsewhere = compose(["model=hf", "model.path=/cluster/nope", "launcher=slurm"])
    assert elsewhere.model.path == "/cluster/nope"
    assert elsewhere.model.name == "nope"


def test_what_is_no_model_to_train_is_refused(tmp_path: Path) -> None:
    assert "needs model.path=ORG/NAME" in fault("model=hf")
    assert "no such directory with a config.json" in fault("model=hf", "model.path=./nothing/here")
    encoder = model_at(tmp_path / "bert", architectures=["BertForMaskedLM"])
    assert "not a causal language model: its config.json names BertForMaskedLM" in fault(
        "model=hf", f"model.path={encoder}"
    )
    compose(
        ["model=hf", f"model.path={model_at(tmp_path / 'gpt2', architectures=['GPT2LMHeadModel'])}"]
    )
    t5 = model_at(tmp_path / "t5", is_encoder_decoder=True)
    assert "is an encoder and a decoder" in fault("model=hf", f"model.path={t5}")
    (tmp_path / "bert" / "config.json").write_text("no json")
    assert compose(["model=hf", f"model.path={encoder}"]).model.architecture is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/my model!", "my-model"),
        ("runs/whodunit-1/checkpoints/checkpoint-40", "checkpoints-checkpoint-40"),
        ("/c/models--Org--Name/snapshots/0a1b", "name"),
    ],
)
def test_a_name_derives_from_the_path(path: str, name: str) -> None:
    assert name_of(path) == name


QWEN = {"num_experts": 8, "moe_intermediate_size": 32}
SHARED = {"shared_expert_intermediate_size": 40}
GLM = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 8,
    "n_group": 1,
    "topk_group": 1,
}
EXPERTS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v3": GLM,
    "glm4_moe": GLM,
    "glm4_moe_lite": GLM,
    "minimax_m2": {"num_local_experts": 8},
    "mixtral": {"num_local_experts": 8},
    "qwen2_moe": QWEN | SHARED,
    "qwen3_5_moe_text": QWEN | SHARED,
    "qwen3_moe": QWEN,
    "qwen3_next": QWEN | SHARED,
    "qwen3_vl_moe_text": QWEN,
}
"""Family -> sizes of its experts."""
OF_PICTURES: Final = ("qwen3_vl_moe_text", "qwen3_vl_text")
"""Text networks of models of pictures: transformers has no class of them with a head."""


def network_and_model(family: str) -> tuple[Architecture, Any]:
    """The network of a small model of five layers, and the model without weights."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

    small = {
        "hidden_size": 64,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }
    small |= {"intermediate_size": 48, "vocab_size": 99, "pad_token_id": 0}
    config = CONFIG_MAPPING[family](**small | EXPERTS.get(family, {}))
    network = network_of(config.to_dict())
    assert network is not None
    with torch.device("meta"):
        if family not in OF_PICTURES:
            model = AutoModelForCausalLM.from_config(config)
        else:
            model = AutoModel.from_config(config)
            if not network["tied_embeddings"]:
                model.head = torch.nn.Linear(64, 99, bias=False)
    return Architecture(**network), model


@pytest.mark.parametrize("family", COUNTED)
def test_the_parameters_of_a_family_are_counted_exactly(family: str) -> None:
    # Kimi K2 has code of its own, which is DeepSeek-V3's; twins: tests/trainers/test_slime_media.py.
    same = {"kimi_k2": "deepseek_v3", **TEXT_TWINS}
    shape, model = network_and_model(same.get(family, family))
    shape = shape.model_copy(update={"model_type": family})
    assert weights_of(shape).total == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    "family", ["qwen2", "mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3", "qwen3_next"]
)
def test_adapters_are_counted_as_peft_makes_them(family: str) -> None:
    from peft import get_peft_model

    from xp.backends.trl.worker.lora import peft_config

    shape, model = network_and_model(family)
    lora = LoraSpec(rank=2, alpha=4.0, dropout=0.0, target_modules=None)
    adapted = get_peft_model(model, peft_config(lora, model))
    made = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
    assert peft_adapters(shape, 2, adapts_experts=True) == made


def transformers_config(name: str) -> Mapping[str, Any] | None:
    """The config.json of a family without values of its own; None where this version lacks the family."""
    from transformers import CONFIG_MAPPING

    family = next((one for one in (name, f"{name}_text") if one in CONFIG_MAPPING), None)
    return None if family is None else CONFIG_MAPPING[family]().to_dict()


@pytest.mark.parametrize("family", RECURRENT)
def test_a_family_with_recurrent_layers_is_known_with_its_layers(family: str) -> None:
    config = transformers_config(family) or {"model_type": family}
    without_list = {
        key: value
        for key, value in config.items()
        if key not in ("layer_types", "layers_block_type")
    }
    assert stated(without_list)["recurrent_layers"]
    # A LFM2 of no layers' kinds is made of attention alone.
    assert stated(config)["recurrent_layers"] == (family != "lfm2")


GRANITE: Mapping[str, Any] = {"model_type": "granitemoehybrid", "mamba_n_heads": 8}
PACKED = (
    "backend=skyrl",
    "hardware=h100x8",
    "env=whodunit",
    "model=hf",
    "training.max_response_tokens=4096",
)


def test_skyrl_packs_no_episodes_that_would_read_each_others_state(tmp_path: Path) -> None:
    own = {**GRANITE, "layer_types": ["mamba", "attention"]}
    mine = (*PACKED, f"model.path={model_at(tmp_path / 'hybrid', **own)}")
    megatron = ("backend.parallel.strategy=megatron", "backend.parallel.offload_optimizer=true")
    for words in ((), megatron, ("backend.attention=sdpa",)):
        plan = build_plan(compose([*mine, *words]), "r")
        assert PlanKeys(plan).rendered["trainer.remove_microbatch_padding"] == "false"


@pytest.mark.parametrize(
    ("config", "words", "field"),
    [
        ({**SMOLLM2, "model_type": "llama4_text"}, (), "model.path"),
        ({**SMOLLM2, "model_type": "deepseek_v4"}, PACKED, "model.path"),
    ],
)
def test_a_family_that_the_engine_or_the_trainer_computes_otherwise_is_refused(
    config: Mapping[str, Any], words: Sequence[str], field: str, tmp_path: Path
) -> None:
    place = model_at(tmp_path / "mine")
    (place / "config.json").write_text(json.dumps(config))
    mine = ("model=hf", f"model.path={place}", *words)
    assert f"{field}: " in fault(*mine)


@pytest.mark.parametrize("part", ["tokenizer.json", "model.safetensors"])
def test_a_directory_without_a_part_of_the_model_is_refused(
    part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "run"
    place = model_at(tmp_path / "mine")
    (place / part).unlink()
    assert main([command, "model=hf", f"model.path={place}"]) == ExitCode.CONFIG
    kind = part.partition(".")[2]
    message = capsys.readouterr().err
    assert f"model.path={place}: the directory has no " in message
    assert kind in message


@pytest.mark.parametrize(
    ("words", "lengths"),
    [
        ((), (256, 768, 768)),
        (("training.max_response_tokens=1000", "training.max_tokens_per_turn=64"), (24, 1000, 64)),
    ],
)
def test_lengths_that_nobody_set_fit_the_models_context(
    words: tuple[str, ...],
    lengths: tuple[int, int, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = compose(
        ["model=hf", f"model.path={model_at(tmp_path / 'a', max_position_embeddings=1024)}", *words]
    ).training
    assert (
        training.max_prompt_tokens,
        training.max_response_tokens,
        training.max_tokens_per_turn,
    ) == lengths
    note = capsys.readouterr().err
    assert ("/a takes 1,024 tokens, hence training.max_" in note) == (sum(lengths[:2]) == 1024)
