"""A random model of two layers of a family under Slime: loaded, updated once and exported, beside transformers.

python -m tests.trainers.slime_family FAMILY DIRECTORY

Slime's loader, forward pass, update and conversion run as they are, with Megatron's local layers. Not real: as in
tests/trainers/slime_megatron.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.slime_arguments import parse
from tests.support.tiny import tokenizer_and_model
from tests.trainers.slime_megatron import OWN, SAID, begin, log_probs
from tests.trainers.slime_routing import MORE
from tests.trainers.slime_update import batch_of, drawn
from tools.parity.slime_rehearsal.megatron import packed_attention, without_cuda
from xp.backends.slime.worker.models import check_architecture, set_yarn
from xp.backends.slime.worker.text_network import adapt, complete
from xp.composition import compose
from xp.spec import RunSpec
from xp.worker.media import auto_class

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
ROUTED = {
    "n_routed_experts": 8,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
    "routed_scaling_factor": 2.5,
}
# Kimi K2's: Megatron's default of beta_fast is 32.
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 32.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **ROUTED,
        **LATENT,
        "n_group": 4,
        "topk_group": 2,
        # Megatron scores a group by its best (experts per token / groups per token), transformers by its best two.
        "num_experts_per_tok": 4,
        "rope_parameters": YARN,
    },
    "glm4_moe": {
        **ROUTED,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "attention_bias": True,
        "use_qk_norm": True,
        "routed_scaling_factor": 2.5,
        "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
    },
    "minimax_m2": {
        "num_local_experts": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 32,
        "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5},
    },
}
"""Family that runs on a CPU -> its config.json over `SMALL`."""
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
}
MEDIA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3_vl": (
        {
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts_per_tok": None,
            "rope_parameters": {**ROPE, "mrope_section": [4, 2, 2]},
        },
        {**VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    ),
    "glm4v_moe": (
        {
            **ROUTED,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "attention_bias": True,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
        VISION,
    ),
}
"""Family with a vision part that runs on a CPU -> its sections of text, over `SMALL`, and of pictures."""


def make(family: str, root: Path) -> Path:
    """The random model as a Hugging Face directory; its biases of experts are not zero."""
    from transformers import CONFIG_MAPPING

    torch.manual_seed(0)
    tokenizer, _ = tokenizer_and_model()
    sizes = SMALL | {"vocab_size": len(tokenizer)}
    if family in MEDIA:
        text, vision = MEDIA[family]
        config = CONFIG_MAPPING[family](
            text_config=sizes | text, vision_config=vision, tie_word_embeddings=False
        )
    else:
        config = CONFIG_MAPPING[family](**sizes | FAMILIES[family])
    model = auto_class(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if value.dim() > 1:
                value.normal_(0, 0.1)
            elif "correction_bias" in name:
                value.uniform_(0, 0.5)
    directory = root / "models" / family
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def spec_of(model: Path) -> RunSpec:
    """One update of the model, whose network is read from its config.json."""
    return compose(
        [
            *(
                "backend=slime",
                "env=whodunit_mini",
                "hardware=a100x2",
                "model=hf",
                f"model.path={model}",
            ),
            *("model.dialect=hermes", "model.max_context_tokens=1024", "backend.parallel.tensor=1"),
            *(
                "training.max_prompt_tokens=700",
                "training.max_tokens_per_turn=60",
                "training.max_response_tokens=300",
            ),
            *("training.num_steps=1", "training.prompts_per_step=2", "training.group_size=4"),
            *("training.micro_batch_size=1", "training.kl_coef=0", "env.train.num_tasks=16"),
        ]
    )


def of_engine(name: str, *, is_latent: bool, is_dense: bool) -> str:
    """A local layer's parameter by the name that TransformerEngine's has."""
    name = re.sub(r"local_experts\.(\d+)\.(linear_fc\d)\.weight", r"\2.weight\1", name)
    name = name.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
    if is_dense:
        name = name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")
    if is_latent:
        name = re.sub(r"\.(q|kv)_layernorm\.weight", r".linear_\1_up_proj.layer_norm_weight", name)
    return name


def kind_of_layers(args: Any) -> dict[str, bool]:
    return {"is_latent": args.multi_latent_attention, "is_dense": args.num_experts is None}


def export(args: Any, family: str, model: Any, source: Path, directory: Path) -> None:
    """Megatron's weights for transformers, by Slime's conversion."""
    from safetensors.torch import save_file
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf

    weights = {}
    layers = kind_of_layers(args)
    buffers = [
        (name, value) for name, value in model[0].named_buffers() if name.endswith("expert_bias")
    ]
    for name, value in (*model[0].named_parameters(), *buffers):
        theirs = of_engine(name, **layers).split("module.")[-1]
        for key, one in convert_to_hf(
            args, args.model_name or family, f"module.module.{theirs}", value
        ):
            weights[key] = one.detach().clone().contiguous()
    directory.mkdir()
    (directory / "config.json").write_text((source / "config.json").read_text())
    save_file(weights, directory / "model.safetensors", {"format": "pt"})


def latent_attention() -> None:
    """Lets Megatron's local attention, which `packed_attention` computes, have values of another width than keys."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    init = DotProductAttention.__init__

    def wider(
        self: Any,
        *args: Any,
        k_channels: int | None = None,
        v_channels: int | None = None,
        **more: Any,
    ) -> None:
        del k_channels, v_channels
        init(self, *args, **more)

    DotProductAttention.__init__ = wider


def main(family: str, root: Path) -> None:
    """Print the gradient's norm of the update, with both exports and what Megatron says of the tokens beside them."""
    torch._dynamo.config.disable = True
    directory = make(family, root)
    spec = spec_of(directory)
    assert spec.model.architecture is not None
    check_architecture(directory, spec.model.architecture.model_dump(mode="json"))
    args = parse(spec, root)
    make(family, root)  # the parser's test leaves a configuration without the rest
    for name, value in (OWN | MORE).items():
        setattr(args, name, value)
    args.padded_vocab_size = args.vocab_size
    set_yarn(args)
    adapt(args)
    without_cuda()
    packed_attention()
    latent_attention()
    begin(args, root)
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils
    from slime.backends.megatron_utils import hf_to_megatron
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import setup_model_and_optimizer, train_one_step

    # Of TransformerEngine, for GPUs.
    moe_utils.te_general_gemm = None
    multi_latent_attention.TELinear = type(None)
    model, optimizer, scheduler = setup_model_and_optimizer(args, "actor")
    layers = kind_of_layers(args)
    load = hf_to_megatron._LOADERS[family]
    hf_to_megatron._LOADERS[family] = lambda name, *more: load(of_engine(name, **layers), *more)
    hf_to_megatron.load_hf_weights(args, model, directory)
    optimizer.reload_model_params()
    batch = batch_of(drawn())
    data = {
        **batch,
        "tokens": batch["unconcat_tokens"],
        "micro_batch_indices": [[*range(len(batch["rewards"]))]],
    }
    norm = 0.0
    for number in range(2):
        data["log_probs"] = log_probs(args, model, data)
        export(args, family, model, directory, root / f"export-{number}")
        complete(root / f"export-{number}", directory)
        torch.save(
            {"tokens": data["tokens"], "log_probs": data["log_probs"]},
            root / f"export-{number}" / SAID,
        )
        if number == 0:
            episodes = len(batch["rewards"])
            step = get_data_iterator(data)
            _, norm = train_one_step(
                args,
                1,
                0,
                step,
                model,
                optimizer,
                scheduler,
                1,
                episodes,
            )
    print("RESULT", json.dumps(float(norm)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
