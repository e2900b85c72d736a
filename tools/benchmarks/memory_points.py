"""Peak memory of a trainer's own forward, loss and backward on the CPU: `python -m tools.benchmarks.memory_points trl`.

Runs in the trainer's Python and prints one line of JSON. A peak is that of torch's allocator, by its profiler.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from xp.composition import compose

HIDDEN = 16
"""Width of the network: small, so that the head is all that counts."""
VOCABULARIES = (65_536, 131_072)
TOKENS = (128, 256)
"""Tokens of a micro-batch of `ROWS` episodes, prompts included."""
ROWS = 2
PROMPT = 8
ENTROPY_CHUNK = 4
"""Tokens of a chunk of SkyRL's entropy; its default of 1,024 would be more than a batch has here."""
GROUPS = ExitStack()
"""Megatron's process groups, until the program ends."""
Point = dict[str, float]


def peak(step: Callable[[], Any]) -> int:
    """Bytes by which live memory rises at most while `step` runs, over what is live before it."""
    from torch._C._profiler import _EventType
    from torch.profiler import ProfilerActivity, profile

    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=False
    ) as watched:
        step()
    changes = []
    pending = list(watched.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        if event.tag == _EventType.Allocation:
            changes.append((event.start_time_ns, event.extra_fields.alloc_size))
    live = highest = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        live += change
        highest = max(highest, live)
    return highest


def write_model(directory: Path, vocabulary: int) -> None:
    """A Qwen3 of one thin layer with a wide vocabulary, and the embedded default's tokenizer."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from xp.worker.tiny_model import SHIPPED

    sizes = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    words = AutoTokenizer.from_pretrained(SHIPPED)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=16,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        **sizes,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    words.save_pretrained(directory)


def points(measure: Callable[[int, Path], Callable[[int], Callable[[], Any]]]) -> list[Point]:
    """Peaks over the grid, each of a second update: the first makes the gradients.

    Args:
        measure: vocabulary and scratch directory -> tokens -> one forward and backward.
    """
    found: list[Point] = []
    for vocabulary in VOCABULARIES:
        with tempfile.TemporaryDirectory(prefix="xp-memory-") as scratch:
            step_of = measure(vocabulary, Path(scratch))
            for tokens in TOKENS:
                step = step_of(tokens)
                step()
                found.append({"tokens": tokens, "vocabulary": vocabulary, "peak": peak(step)})
    return found


def trl(vocabulary: int, scratch: Path) -> Callable[[int], Callable[[], Any]]:
    """TRL's GRPOTrainer in bfloat16 autocast with gradient checkpointing, as xp sets it: its loss and its backward."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from xp.backends.trl.control.render import grpo_config
    from xp.backends.trl.worker.train import settled_reward
    from xp.worker.places import RunPaths

    write_model(scratch / "model", vocabulary)
    places = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
    spec = compose(["backend=trl", "model.dtype=bfloat16", "training.gradient_checkpointing=true"])
    own = {"output_dir": str(scratch), "save_strategy": "no", "use_vllm": False}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(scratch / "model"),
        args=GRPOConfig(**grpo_config(spec, places) | own),
        processing_class=AutoTokenizer.from_pretrained(scratch / "model"),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 8),
        reward_funcs=settled_reward,
    )
    model = trainer.accelerator.prepare(trainer.model)
    trainer.current_gradient_accumulation_steps = 1
    model.train()

    def step_of(tokens: int) -> Callable[[], Any]:
        length = tokens // ROWS - PROMPT
        inputs = {
            "prompt_ids": torch.randint(9, 90, (ROWS, PROMPT)),
            "prompt_mask": torch.ones(ROWS, PROMPT, dtype=torch.long),
            "completion_ids": torch.randint(9, 90, (ROWS, length)),
            "completion_mask": torch.ones(ROWS, length, dtype=torch.long),
            "advantages": torch.tensor([1.0, -1.0]),
            "old_per_token_logps": torch.zeros(ROWS, length),
            "ref_per_token_logps": torch.zeros(ROWS, length),
            "num_items_in_batch": torch.tensor(ROWS * length),
        }

        def step() -> None:
            with trainer.accelerator.autocast():
                loss = trainer._compute_loss(model, inputs)
            trainer.accelerator.backward(loss)

        return step

    return step_of


def trl_sft(vocabulary: int, scratch: Path) -> Callable[[int], Callable[[], Any]]:
    """TRL's SFTTrainer in the same setting."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from xp.backends.trl.control.render import sft_arguments
    from xp.worker.places import RunPaths

    write_model(scratch / "model", vocabulary)
    spec = compose(
        [
            "backend=trl",
            "model.dtype=bfloat16",
            "training.gradient_checkpointing=true",
            "sft.data=solve",
        ]
    )
    places = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(scratch / "model"),
        args=SFTConfig(
            **sft_arguments(spec, places) | {"output_dir": str(scratch), "save_strategy": "no"}
        ),
        processing_class=AutoTokenizer.from_pretrained(scratch / "model"),
        train_dataset=Dataset.from_list([{"input_ids": [9], "labels": [9]}] * 8),
    )
    model = trainer.accelerator.prepare(trainer.model)
    trainer.current_gradient_accumulation_steps = 1
    model.train()

    def step_of(tokens: int) -> Callable[[], Any]:
        ids = torch.randint(9, 90, (ROWS, tokens // ROWS))
        labels = ids.clone()
        labels[:, :PROMPT] = -100
        count = (labels != -100).sum()

        def step() -> None:
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
            with trainer.accelerator.autocast():
                loss = trainer.compute_loss(model, inputs, num_items_in_batch=count)
            trainer.accelerator.backward(loss)

        return step

    return step_of


def skyrl(
    vocabulary: int,
    scratch: Path,
    *,
    is_fused: bool = False,
    chunk: int = ENTROPY_CHUNK,
    loss: str | None = None,
) -> Callable[[int], Callable[[], Any]]:
    """SkyRL's FSDP2 policy worker in bfloat16, in this process: its `forward_backward`.

    Args:
        is_fused: a stub with the memory of FlashAttention's cross-entropy in the place of SkyRL's log-softmax.
        chunk: tokens of a chunk of the entropy.
        loss: SkyRL's name of another loss than the policy's.
    """
    import torch
    from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch
    from skyrl.backends.skyrl_train.utils import torch_utils
    from skyrl.train.config import MixedPrecisionConfig, SkyRLTrainConfig

    from tests.trainers.skyrl_parts import train_config
    from tools.parity.skyrl_dispatch import InProcess
    from xp.lib.loopback import free_port

    write_model(scratch / "model", vocabulary)
    config = train_config(
        "training.micro_batch_size=2", "training.kl_coef=0", "training.gradient_checkpointing=true"
    )
    model = str(scratch / "model")
    cfg = SkyRLTrainConfig.from_cli_overrides(config.native(model, scratch, model))
    cfg.trainer.bf16 = True
    cfg.trainer.logprobs_chunk_size = chunk
    cfg.trainer.policy.fsdp_config.mixed_precision = MixedPrecisionConfig("bf16", "fp32", "fp32")
    torch_utils.cross_entropy_loss = in_place_cross_entropy(torch)
    plain = vars(torch_utils).setdefault("plain", torch_utils.logprobs_from_logits_v2)

    def fused(logits: Any, labels: Any) -> Any:
        """As SkyRL does it for CUDA's tensors."""
        flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
        return torch_utils.logprobs_from_logits_flash_attn(*flat).view(labels.shape)

    torch_utils.logprobs_from_logits_v2 = fused if is_fused else plain
    torch_utils.F.log_softmax = in_float32(torch)
    worker = InProcess(cfg, Path(model), 4, free_port()).workers["policy"]

    def step_of(tokens: int) -> Callable[[], Any]:
        length = tokens // ROWS
        response = length - PROMPT
        ones = torch.ones(ROWS, response)
        data = TrainingInputBatch(
            {
                "sequences": torch.randint(9, 90, (ROWS, length)),
                "attention_mask": torch.ones(ROWS, length, dtype=torch.long),
                "response_mask": ones.long(),
                "loss_mask": ones / (ROWS * response),
                "action_log_probs": -ones,
                "base_action_log_probs": -ones,
                "rollout_logprobs": -ones,
                "advantages": ones,
                "returns": ones,
                "values": ones,
            }
        )
        data.metadata = {"response_length": response}
        return lambda: worker.forward_backward(data, loss_fn=loss)

    return step_of


def in_float32(torch: Any) -> Any:
    """log_softmax as autocast has it on CUDA, in which the worker calls it: of a float32 copy."""
    return lambda logits, dim: torch.log_softmax(logits.float(), dim)


def in_place_cross_entropy(torch: Any) -> Any:
    """Stub for flash_attn.ops.triton.cross_entropy, which needs CUDA: turns the logits into their gradient."""

    class InPlace(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, logits: Any, labels: Any) -> Any:
            total = torch.stack([torch.logsumexp(row.float(), -1) for row in logits.split(1)])[:, 0]
            ctx.save_for_backward(logits, total, labels)
            return total - logits.gather(1, labels[:, None])[:, 0].float()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            logits, total, labels = ctx.saved_tensors
            for at, row in enumerate(logits.detach()):
                row.copy_(torch.exp(row.float() - total[at]) * gradient[at])
                row[labels[at]] -= gradient[at].to(row.dtype)
            return logits, None

    return lambda logits, labels, inplace_backward: (InPlace.apply(logits, labels), None)  # noqa: ARG005


def slime(
    vocabulary: int, scratch: Path, *, loss_type: str = "policy_loss"
) -> Callable[[int], Callable[[], Any]]:
    """Slime's loss of a policy, behind Megatron's conversion of bfloat16 logits; the head is a plain product."""
    import torch
    from megatron.core.transformer.module import float16_to_fp32
    from slime.backends.megatron_utils.loss import loss_function

    from tests.trainers.slime_update import arguments, megatron

    if not torch.distributed.is_initialized():
        GROUPS.enter_context(megatron(Path(tempfile.mkdtemp(prefix="xp-memory-"))))
    args = arguments(scratch)
    args.loss_type = loss_type
    head = torch.randn(vocabulary, HIDDEN, dtype=torch.bfloat16, requires_grad=True)

    def step_of(tokens: int) -> Callable[[], Any]:
        total = tokens // ROWS
        response = total - PROMPT
        ones = [torch.ones(response) for _ in range(ROWS)]
        batch = {
            "unconcat_tokens": [torch.randint(9, 90, (total,)) for _ in range(ROWS)],
            "total_lengths": [total] * ROWS,
            "response_lengths": [response] * ROWS,
            "loss_masks": [one.int() for one in ones],
            "rollout_mask_sums": torch.tensor([float(response)] * ROWS),
            "advantages": ones,
            "log_probs": [-one for one in ones],
            "rollout_log_probs": [-one for one in ones],
            "ref_log_probs": [-one for one in ones],
            "values": ones,
            "rewards": [1.0] * ROWS,
            "num_microbatches": [1],
            "micro_batch_indices": [[*range(ROWS)]],
        }

        def step() -> None:
            hidden = torch.randn(1, tokens, HIDDEN, dtype=torch.bfloat16)
            # One expression: nothing but autograd keeps what lies between, as in Megatron's module.
            loss, *_ = loss_function(args, batch, 1, ROWS, float16_to_fp32(hidden @ head.t()))
            loss.backward()

        return step

    return step_of


MEASURES: Mapping[str, Mapping[str, Any]] = {
    "trl": {"loss": trl, "fine-tuning": trl_sft},
    "skyrl": {
        "attention=flash": lambda *place: skyrl(*place, is_fused=True),
        "attention=flash, entropy in one chunk": lambda *place: skyrl(
            *place, is_fused=True, chunk=4096
        ),
        "attention=sdpa": skyrl,
        "attention=flash, fine-tuning": lambda *place: skyrl(
            *place, is_fused=True, loss="cross_entropy"
        ),
        "attention=sdpa, fine-tuning": lambda *place: skyrl(*place, loss="cross_entropy"),
    },
    "slime": {"loss": slime, "fine-tuning": lambda *place: slime(*place, loss_type="sft_loss")},
}
"""Backend -> path of the loss -> measure."""


def main(backend: str) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if backend == "skyrl":
        from xp.backends.skyrl.worker.rehearsal import cpu_torch

        cpu_torch.prepare_process()
    with GROUPS:
        found = {name: points(measure) for name, measure in MEASURES[backend].items()}
    print("POINTS", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
