"""Peak memory of this machine's GPU in updates of TRL's trainer, beside the plan's: `make bench ARGS=card`.

Networks with random weights and no engine. A peak is what torch's allocator reserved at most, and the rest of the
process on the GPU (context, libraries), as nvidia-smi counts it. Needs an NVIDIA GPU with TRL (docs/backends/trl.md).
"""

from __future__ import annotations

import gc
import itertools
import subprocess
import tempfile
from typing import Any

from xp.backends.trl.control.render import grpo_config
from xp.backends.trl.worker.lora import peft_config
from xp.backends.trl.worker.train import settled_reward
from xp.composition import compose
from xp.planning.memory.estimate import GIB, estimate
from xp.spec import RunSpec
from xp.worker.places import RunPaths
from xp.worker.tiny_model import SHIPPED

QWEN_05B = (
    "model=qwen2.5-1.5b-instruct model.architecture.hidden_size=896 model.architecture.num_layers=24"
    " model.architecture.num_heads=14 model.architecture.head_dim=64 model.architecture.intermediate_size=4864"
)
MODELS = {
    "SmolLM2-135M": "model=smollm2-135m-instruct",
    "Qwen2.5-0.5B": QWEN_05B,
    "Qwen2.5-1.5B": "model=qwen2.5-1.5b-instruct",
    "Qwen2.5-3B": "model=qwen2.5-3b-instruct",
}
ADAPTERS = "model.lora={rank: 32, alpha: 64.0, dropout: 0.0, target_modules: null}"
LENGTHS = (1024, 4096)
"""Tokens of an episode, a quarter of them its prompt."""
MICRO = 4


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("bench_card: torch sees no NVIDIA GPU here")
    total = torch.cuda.mem_get_info()[1] / GIB
    print(f"{torch.cuda.get_device_name()}, {total:.1f} GiB; micro-batches of {MICRO} episodes")
    for name, words in cases().items():
        spec = compose(words)
        plan = estimate(spec).training_peak / GIB
        try:
            peak = peak_of(spec) / GIB
            print(
                f"{name}: plan {plan:.1f} GiB, peak {peak:.1f} GiB, ratio {plan / peak:.2f}",
                flush=True,
            )
        except torch.OutOfMemoryError:
            print(f"{name}: plan {plan:.1f} GiB, out of memory", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def peak_of(spec: RunSpec) -> int:
    """Bytes of the GPU at the peak of the second and third update."""
    import torch

    trainer = trainer_of(spec)
    updates(trainer, spec, 1)
    torch.cuda.reset_peak_memory_stats()
    updates(trainer, spec, 2)
    return (
        int(torch.cuda.max_memory_reserved()) + used_on_card() - int(torch.cuda.memory_reserved())
    )


def cases() -> dict[str, list[str]]:
    """Overrides of each network with and without adapters, with and without gradient checkpointing, at two lengths."""
    words_of = {}
    for (model, words), adapters, checkpointing, length in itertools.product(
        MODELS.items(), ((), (ADAPTERS,)), (True, False), LENGTHS
    ):
        what = f"{'adapters' if adapters else 'all weights'}, {'with' if checkpointing else 'without'} checkpointing"
        words_of[f"{model}, {what}, {length} tokens"] = [
            *("backend=trl", "hardware=h200x1", "env=sums", *words.split(), *adapters),
            *("training.kl_coef=0", "training.num_steps=2", "backend.attention=sdpa"),
            f"training.gradient_checkpointing={str(checkpointing).lower()}",
            f"training.micro_batch_size={MICRO}",
            f"training.max_prompt_tokens={length // 4}",
            f"training.max_tokens_per_turn={length - length // 4}",
            f"training.max_response_tokens={length - length // 4}",
        ]
    return words_of


def trainer_of(spec: RunSpec) -> Any:
    """TRL's trainer as xp configures it, with random weights and an optimizer."""
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    shape = spec.model.architecture
    lora = spec.model.lora
    assert shape is not None
    config = AutoConfig.for_model(
        shape.model_type,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.intermediate_size,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=shape.tied_embeddings,
    )
    with torch.device("cuda"):
        dtype = torch.float32 if lora is None else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    places = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
    changed = {"output_dir": tempfile.gettempdir(), "save_strategy": "no", "use_vllm": False}
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**grpo_config(spec, places) | changed),
        processing_class=AutoTokenizer.from_pretrained(SHIPPED),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 8),
        reward_funcs=settled_reward,
        peft_config=None if lora is None else peft_config(lora, model),
    )
    trainer.model = trainer.model_wrapped = trainer.accelerator.prepare(trainer.model)
    trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 2
    if spec.training.gradient_checkpointing:
        # Trainer.train does it.
        trainer.model.activation_checkpointing_enable()
    trainer.model.train()
    return trainer


def updates(trainer: Any, spec: RunSpec, number: int) -> None:
    """Updates of two micro-batches each, of episodes at their limit."""
    import torch

    prompt = spec.training.max_prompt_tokens
    response = spec.training.max_response_tokens
    for _ in range(number):
        for _ in range(2):
            inputs = {
                "prompt_ids": torch.randint(9, 900, (MICRO, prompt), device="cuda"),
                "prompt_mask": torch.ones(MICRO, prompt, dtype=torch.long, device="cuda"),
                "completion_ids": torch.randint(9, 900, (MICRO, response), device="cuda"),
                "completion_mask": torch.ones(MICRO, response, dtype=torch.long, device="cuda"),
                "advantages": torch.randn(MICRO, device="cuda"),
                "old_per_token_logps": torch.zeros(MICRO, response, device="cuda"),
                "num_items_in_batch": torch.tensor(2 * MICRO * response, device="cuda"),
            }
            with trainer.accelerator.autocast():
                loss = trainer._compute_loss(trainer.model, inputs)
            trainer.accelerator.backward(loss)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()


def used_on_card() -> int:
    """Bytes in use on the GPU, which no other program may use meanwhile."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.check_output(command, text=True).split()[0]) * 2**20


if __name__ == "__main__":
    main()
