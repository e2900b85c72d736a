"""The training of recipes/first-gpu.yaml as a user of TRL writes it by hand, to compare starts and steps with.

    python -m tools.benchmarks.first_gpu_by_hand MODEL

Needs an NVIDIA GPU, TRL and vLLM. MODEL is SmolLM2-135M-Instruct: a directory, or its name on the hub.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from typing import Any

BEGAN = time.time()
STEPS, HELD_OUT = 30, 128
NUMBER = re.compile(r"-?\d+")


def grade(text: str, answer: str) -> float:
    """1 if the last number is the sum."""
    found = NUMBER.findall(text)
    return float(bool(found) and found[-1] == answer)


def reward(completions: Any, answer: Any, **_: Any) -> list[float]:
    """TRL's reward function."""
    return [grade(one[0]["content"], right) for one, right in zip(completions, answer, strict=True)]


def say(what: str) -> None:
    print(f"{time.time() - BEGAN:6.1f} s  {what}", flush=True)


def main(model: str) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from vllm import SamplingParams

    sums = [(x, y) for x in range(1, 21) for y in range(1, 21)]
    random.Random(7).shuffle(sums)
    rows = [{"prompt": [{"role": "user", "content": f"What is {x} + {y}?"}], "answer": str(x + y)} for x, y in sums]
    test, train = rows[:HELD_OUT], rows[HELD_OUT:]
    config = GRPOConfig(
        output_dir="first-gpu-by-hand",
        max_steps=STEPS,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=8,
        generation_batch_size=256,
        num_generations=8,
        max_completion_length=48,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        bf16=True,
        gradient_checkpointing=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=0.3,
        vllm_max_model_length=176,
        vllm_importance_sampling_correction=False,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=1,
        disable_tqdm=True,
    )

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" in (logs or {}):
                say(f"step {state.global_step}: reward {logs['reward']:.3f}")

    say("imports")
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(train), callbacks=[Steps()]
    )
    say("model and engine")

    def evaluate(when: str) -> None:
        sampling = SamplingParams(n=4, temperature=1.0, max_tokens=48, seed=1)
        answers = trainer.vllm_generation.llm.chat([row["prompt"] for row in test], sampling, use_tqdm=False)
        pairs = [
            (one.text, str(row["answer"])) for row, asked in zip(test, answers, strict=True) for one in asked.outputs
        ]
        rewards = [grade(text, right) for text, right in pairs]
        say(f"held-out reward {when}: {sum(rewards) / len(rewards):.3f}")

    evaluate("before")
    trainer.train()
    trainer.vllm_generation.sync_weights()
    evaluate("after")
    trainer.save_model("first-gpu-by-hand/model")
    say("end")
    # vLLM's threads would hold up the end of the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
