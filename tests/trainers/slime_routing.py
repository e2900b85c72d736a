"""A mixture of experts on the CPU under Slime: the engine chooses another expert for one token.

python -m tests.trainers.slime_routing DIRECTORY

Slime's replay, its forward pass and its patch of Megatron run as they are, with Megatron's local layers. The engine is
transformers' Qwen3-MoE with the same weights, by Slime's own conversion. Not real: as in tests/trainers/slime_megatron.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tests.support.slime_arguments import parse
from tests.support.slime_rehearsal import spec_of
from tests.trainers.slime_megatron import OWN, begin, log_probs
from tests.trainers.slime_setup import tiny_directory
from tests.trainers.slime_update import batch_of, drawn
from tools.parity.slime_rehearsal.megatron import packed_attention, without_cuda
from xp.backends.slime.worker.rollout import _fill_experts
from xp.lib.models.network import KEYS, network_of

EXPERTS = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
"""Of config.json, over the tiny dense model's."""
MORE = {
    "moe_grouped_gemm": False,
    "moe_permute_fusion": False,
    "moe_token_dispatcher_type": "allgather",
    "variable_seq_lengths": False,
    "disable_grad_buffers_cpu_backup": False,
    "disable_param_buffers_cpu_backup": False,
}
"""Arguments of a mixture that need CUDA otherwise."""
ENGINE = "engine"
BATCH = "batch.pt"
SAMPLED = "sampled.pt"
EPISODE = 0
LAYER = 0
POSITION = 10
"""Place of the planted flip: a token of a response, in the first layer."""


def export(args: Any, model: Any, directory: Path) -> None:
    """Write the network for transformers, with Megatron's weights."""
    from safetensors.torch import save_file
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf
    from transformers import Qwen3MoeConfig

    weights = {}
    for name, parameter in model[0].named_parameters():
        # Local layers have other names than TransformerEngine's.
        theirs = name.replace(
            ".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight"
        )
        theirs = re.sub(r"local_experts\.(\d+)\.(linear_fc\d)\.weight", r"\2.weight\1", theirs)
        for key, value in convert_to_hf(
            args, "qwen3moe", f"module.module.{theirs.split('module.')[-1]}", parameter
        ):
            weights[key] = value.detach().clone().contiguous()
    Qwen3MoeConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_attention_heads,
        num_key_value_heads=args.num_query_groups,
        head_dim=args.kv_channels,
        moe_intermediate_size=args.moe_ffn_hidden_size,
        num_experts=args.num_experts,
        num_experts_per_tok=args.moe_router_topk,
        norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": float(args.rotary_base)},
        rms_norm_eps=args.layernorm_epsilon,
        tie_word_embeddings="lm_head.weight" not in weights,
        architectures=["Qwen3MoeForCausalLM"],
    ).save_pretrained(directory)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})


@torch.inference_mode()
def sampled(
    engine: Any, tokens: torch.Tensor, num_response: int, flip: int | None
) -> tuple[Any, torch.Tensor]:
    """The engine's log-probabilities of a response, and the experts of each token but the last.

    Args:
        flip: position of the token that gets the third-best expert in the place of the second; None: none.
    """
    chosen: list[torch.Tensor] = []

    def choose(_: Any, __: Any, output: Any) -> Any:
        logits, scores, experts = output
        if flip is not None and len(chosen) == LAYER:
            experts, scores = experts.clone(), scores.clone()
            experts[flip, 1] = logits[flip].argsort(descending=True)[2]
            scores[flip] = logits[flip][experts[flip]].softmax(-1)
        chosen.append(experts)
        return logits, scores, experts

    hooks = [layer.mlp.gate.register_forward_hook(choose) for layer in engine.model.layers]
    logits = engine(tokens[None]).logits[0, :-1]
    for hook in hooks:
        hook.remove()
    found = logits.log_softmax(-1).gather(1, tokens[1:, None])[-num_response:, 0]
    return found, torch.stack(chosen, 1)[:-1].int()


def play(root: Path) -> None:
    """The engine, in a process of its own that has CUDA's calls: plays the batch without and with the flip."""
    from transformers import AutoModelForCausalLM

    engine = AutoModelForCausalLM.from_pretrained(root / ENGINE, dtype=torch.float32).eval()
    batch = torch.load(root / BATCH)
    places = [None, POSITION]
    torch.save(
        [
            [
                sampled(engine, tokens, length, flip if at == EPISODE else None)
                for at, (tokens, length) in enumerate(
                    zip(batch["tokens"], batch["response_lengths"], strict=True)
                )
            ]
            for flip in places
        ],
        root / SAMPLED,
    )


def main(root: Path) -> None:
    """Print the largest gap of the log-probabilities: without a flip, with one, and with one that is replayed."""
    torch._dynamo.config.disable = True
    network = tiny_directory(root) / "config.json"
    config = json.loads(network.read_text()) | EXPERTS
    network.write_text(json.dumps(config))
    words = [
        f"model.architecture.{ours}={EXPERTS[theirs[0]]}"
        for ours, theirs in KEYS.items()
        if theirs[0] in EXPERTS
    ]
    router = ",".join(
        f"{name}:{json.dumps(value)}"
        for name, value in (network_of(config) or {})["router"].items()
    )
    words += [f"model.architecture.router={{{router}}}", "model.router_replay=true"]
    args = parse(spec_of(network.parent, *words), root)
    assert args.use_rollout_routing_replay
    for name, value in (OWN | MORE).items():
        setattr(args, name, value)
    args.padded_vocab_size = args.vocab_size
    # Slime sets both in the actors (slime/ray/actor_group.py, backends/megatron_utils/actor.py).
    os.environ |= {"ENABLE_ROUTING_REPLAY": "1", "ROUTING_REPLAY_STAGE": "fallthrough"}
    without_cuda()
    packed_attention()
    from megatron.core.transformer.moe import moe_utils

    # Megatron's own matrix product; the name is missing without TransformerEngine.
    moe_utils.te_general_gemm = None
    begin(args, root)
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import setup_model_and_optimizer

    model, _, _ = setup_model_and_optimizer(args, "actor")
    for name, parameter in model[0].named_parameters():
        if ".experts." in name:
            parameter.data.mul_(5)  # untrained experts hardly differ
    batch = batch_of(drawn())
    data = {
        **batch,
        "tokens": batch["unconcat_tokens"],
        "micro_batch_indices": [[*range(len(batch["rewards"]))]],
    }
    export(args, model, root / ENGINE)
    torch.save({name: data[name] for name in ("tokens", "response_lengths")}, root / BATCH)
    subprocess.run(
        [sys.executable, "-m", "tests.trainers.slime_routing", "engine", str(root)], check=True
    )
    plain, flipped = (list(zip(*one, strict=True)) for one in torch.load(root / SAMPLED))
    samples = [
        SimpleNamespace(
            tokens=tokens.tolist(),
            response_length=length,
            loss_mask=mask.tolist(),
            rollout_routed_experts=experts,
        )
        for tokens, length, mask, experts in zip(
            data["tokens"], data["response_lengths"], data["loss_masks"], flipped[1], strict=True
        )
    ]
    for sample in samples:
        _fill_experts(args, sample)

    def gap(of_engine: Any) -> float:
        return float((torch.cat(log_probs(args, model, data)) - torch.cat(of_engine)).abs().max())

    result = {"without a flip": gap(plain[0]), "flipped": gap(flipped[0])}
    trainer: Any = SimpleNamespace(args=args, model=model)
    rollout = {**data, "rollout_routed_experts": [one.rollout_routed_experts for one in samples]}
    MegatronTrainRayActor.fill_routing_replay(
        trainer,
        get_data_iterator(rollout),
        [1],
        rollout,
    )
    os.environ["ROUTING_REPLAY_STAGE"] = "replay_forward"
    result["replayed"] = gap(flipped[0])
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    (play if sys.argv[1] == "engine" else main)(Path(sys.argv[-1]))
