"""What TRL cannot do, shown by its own code or found in it: proofs of the rows' refusals."""

from __future__ import annotations

import ast
import re
from copy import deepcopy
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.limits.words import code, has, in_table, package
from xp.composition import ROOT
from xp.planning.runtimes import LOCK, versions_in

TRL = package("trl")
TRAINER = TRL / "trainer/grpo_trainer.py"
ENGINE = TRL / "generation/vllm_generation.py"


def test_the_penalty_is_k3_and_a_part_of_the_loss() -> None:
    assert has(
        TRAINER,
        "per_token_kl = ( torch.exp(ref_per_token_logps - per_token_logps)"
        " - (ref_per_token_logps - per_token_logps) - 1 )",
        "per_token_loss = per_token_loss + self.beta * per_token_kl",
    )
    assert code(TRAINER).count("per_token_kl = ") == 2, "k3, and its weighing by the ratio"


def test_the_lock_has_no_flash_attention() -> None:
    lock = (Path(__file__).parents[2] / "requirements/all.lock").read_text()
    assert find_spec("flash_attn") is None
    assert not re.search(r"^flash[-_]attn\b", lock, re.MULTILINE)


def test_fsdp2_moves_all_state_or_none() -> None:
    """FSDP2's policy of offloading names no part of the state."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    assert [field.name for field in fields(CPUOffloadPolicy)] == ["pin_memory"]


def test_a_colocated_engine_has_these_arguments() -> None:
    calls = [
        node
        for node in ast.walk(ast.parse(ENGINE.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "LLM"
    ]
    (call,) = calls
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    refused = ("enforce_eager", "enable_prefix_caching", "kv_cache_dtype", "speculative_config")
    assert not {*refused, "enable_expert_parallel", None} & {*arguments}
    assert ast.literal_eval(arguments["max_num_batched_tokens"]) == 4096
    # Only a model that is loaded in 4 or 8 bits itself is quantised.
    assert has(ENGINE, 'quantization = "bitsandbytes"')


def test_its_lock_has_no_server_of_tokens_with_pictures() -> None:
    """vLLM 0.30 is the first version with `--enable-scale-out` and with `content_parts` beside a request's tokens."""
    assert versions_in([ROOT / "runtimes/trl" / LOCK])["vllm"] == "0.29.0"


def test_an_adapter_on_the_head_is_refused(tmp_path: Path) -> None:
    from peft import LoraConfig

    with pytest.raises(ValueError, match="Applying a PEFT adapter to `lm_head` is not supported"):
        trainer_of(tmp_path, LoraConfig(r=2, target_modules=["lm_head"]))


def trainer_of(directory: Path, adapters: Any, model: Any = None, **options: Any) -> Any:
    """TRL's trainer of a tiny network, or of this model, with new adapters."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from tests.support.tiny import tokenizer_and_model

    tokenizer, tiny = deepcopy(tokenizer_and_model())
    settings = GRPOConfig(
        output_dir=str(directory),
        num_generations=2,
        per_device_train_batch_size=2,
        use_cpu=True,
        bf16=False,
        report_to="none",
        **options,
    )
    return GRPOTrainer(
        model or tiny,
        lambda completions, **_: [float(len(text)) for text in completions],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer,
        peft_config=adapters,
    )


def reference_of_adapters(directory: Path, *, has_trained: bool) -> float:
    """Trains one step of learning rate 0 on adapters that TRL makes, or that the model already has and that change it;
    returns the KL to TRL's reference."""
    import torch
    from peft import LoraConfig, get_peft_model

    from tests.support.tiny import tokenizer_and_model

    adapters = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=not has_trained)
    step = {"max_completion_length": 4, "max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    options: dict[str, Any] = {**step, "learning_rate": 0.0, "beta": 0.1}
    if has_trained:
        torch.manual_seed(0)
        model = get_peft_model(deepcopy(tokenizer_and_model()[1]), adapters)
        trainer = trainer_of(directory, None, model, **options)
    else:
        trainer = trainer_of(directory, adapters, **options)
    assert trainer.ref_model is None
    assert ("ref" in trainer.model.peft_config) is has_trained
    trainer.train()
    return float(next(line["kl"] for line in trainer.state.log_history if "kl" in line))


def test_the_reference_of_adapters_is_the_start(tmp_path: Path) -> None:
    """New adapters change nothing yet, so their reference is the model that they are on; adapters of a start are copied,
    so that theirs is no model without them."""
    assert abs(reference_of_adapters(tmp_path / "new", has_trained=False)) < 1e-6
    assert abs(reference_of_adapters(tmp_path / "start", has_trained=True)) < 1e-6


def test_the_reference_of_adapters_is_not_synchronized(tmp_path: Path) -> None:
    from peft import LoraConfig

    adapters = LoraConfig(r=2, target_modules=["q_proj"])
    with pytest.raises(NotImplementedError, match="while using a PEFT model"):
        trainer_of(tmp_path, adapters, sync_ref_model=True, beta=0.1)


def test_a_group_has_two_episodes(tmp_path: Path) -> None:
    from trl import GRPOConfig

    with pytest.raises(ValueError, match="at least 2 generations per prompt"):
        GRPOConfig(
            output_dir=str(tmp_path),
            num_generations=1,
            per_device_train_batch_size=1,
            use_cpu=True,
            bf16=False,
        )


def test_biases_and_norms_do_not_decay() -> None:
    from types import SimpleNamespace

    from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer

    config = Qwen2Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    model: Any = Qwen2ForCausalLM(config)
    trainer: Any = SimpleNamespace()
    decaying = Trainer.get_decay_parameter_names(trainer, model)
    others = {name for name, _ in model.named_parameters()} - {*decaying}
    assert {name for name in others if "norm" not in name and "bias" not in name} == set()
    assert "model.layers.0.self_attn.q_proj.bias" in others
    assert "model.norm.weight" in others


def test_an_adapter_on_experts_has_no_dropout() -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    layer = torch.nn.Module()
    layer.experts = torch.nn.Parameter(torch.zeros(2, 3, 4))
    config = LoraConfig(target_parameters=["0.experts"], lora_dropout=0.1)
    with pytest.raises(ValueError, match="does not work with lora_dropout"):
        get_peft_model(torch.nn.Sequential(layer), config)


def test_peft_refuses_out_projections_of_mamba() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, FalconH1Config

    from xp.fields.model import MAMBA

    config = FalconH1Config(num_hidden_layers=1, vocab_size=32)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="'out_proj' is incompatible with Mamba"):
        get_peft_model(model, LoraConfig(target_modules=["out_proj"]))
    assert has(package("peft") / "tuners/tuners_utils.py", *(f'"{name}"' for name in MAMBA))


def test_quantized_weights_are_not_trained(tmp_path: Path) -> None:
    """Weights in FP8 are unpacked by transformers, which cannot write the model of experts again afterwards."""
    import json

    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=128,
        intermediate_size=128,
        moe_intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        num_experts=2,
        num_experts_per_tok=1,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if "_proj" in name]:
        scale = torch.ones(weights[name].shape[0] // 128, weights[name].shape[1] // 128)
        weights[name] = weights[name].to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scale
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((tmp_path / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(content))
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=FineGrainedFP8Config(dequantize=True)
    )
    with pytest.raises(ValueError, match="Undefined Operation"):
        model.save_pretrained(tmp_path / "published")
    assert has(
        package("transformers") / "trainer_utils.py",
        "You cannot perform fine-tuning on purely quantized models",
    )


globals().update(in_table("trl"))
