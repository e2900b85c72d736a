"""Slime's own update of Qwen3.5 with pictures on the CPU, for tests/trainers/test_slime_pictures.py.

python -m tests.trainers.slime_vision DIRECTORY

Slime's rollout, conversion of samples, schedule, packing, plug-in (slime_plugins/models/qwen3_5_vl.py), loader, forward
pass, loss, update and conversion of weights run as they are, and so does SGLang's reading of requests. Not real: as in
tests/trainers/slime_megatron; besides, flash-linear-attention's functions are transformers' own in torch, and
TransformerEngine's norms are torch's.
"""

from __future__ import annotations

import json
import os
import re
import sys
from itertools import chain, cycle, islice, pairwise, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import silu

from tests.support.gallery import Gallery
from tests.support.jobs import PLACES
from tests.support.seeing_sglang import qwen3_5, seeing_engine
from tests.support.slime_arguments import parse
from tests.trainers.slime_megatron import OWN, begin
from tests.trainers.slime_play import Kept, converted, play_group
from tests.trainers.slime_routing import MORE
from tests.trainers.slime_setup import group_of
from tools.parity.slime_rehearsal.megatron import packed_attention, without_cuda
from xp.backends.slime.worker import rollout_process
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE, WorkerConfig
from xp.backends.slime.worker.text_network import adapt, complete
from xp.composition import compose
from xp.envs import picture_store
from xp.envs.picture_store import PictureStore
from xp.spec import RunSpec

GROUP = 2
SHOWN = (("a", "b"), ("", "c"), ("", ""), ("d", ""))
"""Pictures of the prompt and of the reply: rows of two, one and no pictures, and of episodes that are void."""
NUM_TURNS = 2


def spec_of(model: Path) -> RunSpec:
    """One update of the model on all tasks, whose network is read from its config.json."""
    return compose(
        [
            *("backend=slime", "env=whodunit_mini", "hardware=a100x2", "model=hf"),
            *(f"model.path={model}", "model.images={max_pixels:200704,per_episode:4}"),
            *("model.dialect=hermes", "model.max_context_tokens=2048", "backend.parallel.tensor=1"),
            *("training.max_prompt_tokens=700", "training.max_tokens_per_turn=60"),
            *("training.max_response_tokens=600", "training.num_steps=1", "env.train.num_tasks=16"),
            *(f"training.prompts_per_step={len(SHOWN)}", f"training.group_size={GROUP}"),
            *("training.micro_batch_size=1", "training.kl_coef=0", "evaluation.every=null"),
        ]
    )


class ZeroCentredNorm(torch.nn.RMSNorm):
    """TransformerEngine's norm with --apply-layernorm-1p, whose weights are around 0."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__(size, eps=eps)
        torch.nn.init.zeros_(self.weight)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(
            hidden, self.normalized_shape, 1 + self.weight, self.eps
        )


class Convolution(torch.nn.Conv1d):
    """flash-linear-attention's ShortConvolution: causal, of each channel alone, with SiLU, a sequence at a time."""

    def __init__(self, hidden_size: int, bias: bool, kernel_size: int) -> None:
        padding = kernel_size - 1
        super().__init__(
            hidden_size, hidden_size, kernel_size, groups=hidden_size, padding=padding, bias=bias
        )

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = []
        for begin_, end in pairwise(cu_seqlens.tolist()):
            channels = x[:, begin_:end].transpose(1, 2)
            parts.append(silu(super().forward(channels)[..., : end - begin_]).transpose(1, 2))
        return torch.cat(parts, 1), None


def without_kernels() -> None:
    """Replaces the kernels of the plug-in's layers by torch."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from slime_plugins.models import qwen3_5 as layers
    from slime_plugins.models import qwen3_5_vl
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

    def norm(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        del cls, config
        return ZeroCentredNorm(hidden_size, eps)

    def delta_rule(*parts: torch.Tensor, cu_seqlens: torch.Tensor, **named: Any) -> Any:
        outputs = []
        for begin_, end in pairwise(cu_seqlens.tolist()):
            part = {key: named[key][:, begin_:end] for key in ("g", "beta")}
            output, _ = theirs.torch_chunk_gated_delta_rule(
                *(tensor[:, begin_:end] for tensor in parts), use_qk_l2norm_in_kernel=True, **part
            )
            outputs.append(output)
        return torch.cat(outputs, 1), None

    def local_spec(config: Any, use_transformer_engine: bool, **named: Any) -> Any:
        del use_transformer_engine
        return get_gpt_decoder_block_spec(
            config,
            False,
            normalization="RMSNorm",
            **named,
        )

    native = layers.get_qwen3_5_spec

    def spec(*parts: Any) -> Any:
        block = native(*parts)
        for layer in block.layer_specs:
            if layer.submodules.self_attention.module is layers.Attention:
                # It has a norm of its own, and TransformerEngine's layer none.
                layer.submodules.input_layernorm = IdentityOp
        return block

    WrappedTorchNorm.__new__ = norm
    layers.FusedRMSNormGated = theirs.Qwen3_5RMSNormGated
    layers.ShortConvolution = Convolution
    layers.get_chunk_gated_delta_rule = lambda _: delta_rule
    layers.get_gpt_decoder_block_spec = local_spec
    qwen3_5_vl.get_qwen3_5_spec = spec


def of_engine(name: str) -> str:
    """A local layer's parameter by the name that TransformerEngine's has."""
    name = re.sub(
        r"(layers\.\d+)\.input_layernorm", r"\1.self_attention.linear_qkv.layer_norm", name
    )
    name = name.replace(".linear_qkv.layer_norm.weight", ".linear_qkv.layer_norm_weight")
    return name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")


def samples_of(args: Any, spec: RunSpec, model: Path, root: Path) -> list[Any]:
    """The episodes of one step in Slime's own rollout."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    config = WorkerConfig(
        root=str(root),
        spec=spec,
        places=PLACES,
        stage="train",
        steps=1,
    )
    path = f"{root}/worker.json"
    setattr(args, WORKER_ATTRIBUTE, path)
    gallery: Any = Gallery(PictureStore.of_stage(), SHOWN, alternates=True)
    kept: Any = Kept()
    rollout_process._workers[path] = rollout_process.Worker(config, gallery, kept)
    words = [tokenizer(text)["input_ids"] for text in ("I see three.", "There are many of them")]

    placeholder = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    num_valid = (len(SHOWN) - 1) * GROUP * NUM_TURNS
    # The last task's episodes write a placeholder of a picture, and are void.
    turns = chain(islice(cycle(words), num_valid), repeat([placeholder]))

    def says(ids: list[int]) -> list[int]:
        del ids
        return [*next(turns), tokenizer.eos_token_id]

    with seeing_engine(args, model, says):
        return [
            sample
            for number, row in enumerate(gallery.rows())
            for sample in play_group(args, group_of(row, GROUP, number))
        ]


def batch_of(args: Any, samples: list[Any]) -> Any:
    """The training's data of the samples, through Slime's manager and actor; Ray's object store is left out."""
    from slime.backends.megatron_utils.actor import MegatronTrainRayActor
    from slime.ray import rollout
    from slime.utils import data

    rollout.ray = SimpleNamespace(put=lambda one: one)
    data.ray = SimpleNamespace(get=lambda one: one)
    manager = object.__new__(rollout.RolloutManager.__ray_metadata__.modified_class)
    manager.args = args
    manager.train_parallel_config = {
        "dp_size": 1,
        "cp_size": 1,
        "vpp_size": 1,
        "microbatch_group_size_per_vp_stage": 1,
    }
    references = manager._split_train_data_by_dp(converted(args, samples))
    return MegatronTrainRayActor._get_rollout_data(SimpleNamespace(args=args), references)


def gap(args: Any, model: Any, data: Any) -> float:
    """Largest difference of the log-probability of a policy's token between the engine and Slime's own forward pass."""
    gaps = []
    for ours, theirs, mask in zip(
        log_probs_in(args, model, data), data["rollout_log_probs"], data["loss_masks"], strict=True
    ):
        if mask.any():
            gaps.append((ours - theirs)[mask > 0].abs().max())
    return float(max(gaps))


def log_probs_in(args: Any, model: Any, data: Any) -> list[torch.Tensor]:
    """Log-probabilities of the responses, in the micro-batches of the schedule."""
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
    from slime.backends.megatron_utils.model import forward_only

    output = forward_only(
        get_log_probs_and_entropy, args, model, get_data_iterator(data), data["num_microbatches"]
    )
    return [part.float() for part in output["log_probs"]]


def export(args: Any, model: Any, start: Path, target: Path) -> None:
    """Writes Megatron's weights for transformers by Slime's conversion, and completes them as xp's export does."""
    from safetensors.torch import save_file
    from slime.backends.megatron_utils.megatron_to_hf import convert_to_hf

    weights = {}
    for name, value in model[0].named_parameters():
        theirs = of_engine(name)
        while theirs.startswith("module."):
            theirs = theirs.removeprefix("module.")
        for key, weight in convert_to_hf(args, "qwen3_5config", f"module.module.{theirs}", value):
            weights[key] = weight.detach().clone().contiguous()
    target.mkdir()
    (target / "config.json").write_text((start / "config.json").read_text())
    save_file(weights, target / "model-00001-of-00001.safetensors", {"format": "pt"})
    complete(target, start)


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def in_one_micro_batch(data: Any) -> Any:
    """The batch with all rows in one packed sequence."""
    everything = [number for numbers in data["micro_batch_indices"] for number in numbers]
    return {**data, "micro_batch_indices": [everything], "num_microbatches": [1]}


def with_other_pixels(data: Any) -> Any:
    """The batch with the pixels of other pictures of the same sizes."""
    inputs = [
        part and {**part, "pixel_values": part["pixel_values"].flip(0)}
        for part in data["multimodal_train_inputs"]
    ]
    return {**data, "multimodal_train_inputs": inputs}


def main(root: Path) -> None:
    """Prints the gap between engine and update, and what one update changed."""
    torch._dynamo.config.disable = True
    os.environ[picture_store.VARIABLE] = str(root / "pictures")
    directory = qwen3_5(root / "models/start")
    spec = spec_of(directory)
    args = parse(spec, root)
    qwen3_5(directory)  # the parser's test leaves a configuration without the rest
    assert args.spec == ["slime_plugins.models.qwen3_5_vl", "get_qwen3_5_vl_model_provider"]
    samples = samples_of(args, spec, directory, root)
    for name, value in (OWN | MORE).items():
        setattr(args, name, value)
    args.padded_vocab_size = args.vocab_size
    adapt(args)
    without_cuda()
    packed_attention()
    without_kernels()
    begin(args, root)
    from slime.backends.megatron_utils import hf_to_megatron
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import setup_model_and_optimizer, train_one_step

    model, optimizer, scheduler = setup_model_and_optimizer(args, "actor")
    load = hf_to_megatron._LOADERS["qwen3_5"]
    hf_to_megatron._LOADERS["qwen3_5"] = lambda name, *more: load(of_engine(name), *more)
    hf_to_megatron.load_hf_weights(args, model, directory)
    optimizer.reload_model_params()
    data = batch_of(args, samples)
    result: dict[str, Any] = {
        "num_pictures": [
            0 if part is None else len(part["image_grid_thw"])
            for part in data["multimodal_train_inputs"]
        ],
        "num_trained": [int(mask.sum()) for mask in data["loss_masks"]],
        "gap": gap(args, model, data),
        "gap_in_one_micro_batch": gap(args, model, in_one_micro_batch(data)),
        "gap_of_other_pixels": gap(args, model, with_other_pixels(data)),
    }
    data["log_probs"] = log_probs_in(args, model, data)
    data["advantages"] = [
        torch.full_like(own, float(reward))
        for own, reward in zip(data["log_probs"], data["rewards"], strict=True)
    ]
    step = get_data_iterator(data)
    (num_micro,) = data["num_microbatches"]
    _, norm = train_one_step(
        args,
        1,
        0,
        step,
        model,
        optimizer,
        scheduler,
        num_micro,
        len(samples),
    )
    export(args, model, directory, root / "export")
    before = weights_of(directory)
    after = weights_of(root / "export")
    result |= {
        "grad_norm": float(norm),
        "changed": [name for name in after if not after[name].equal(before[name])],
        "missing": sorted(before.keys() ^ after.keys()),
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
