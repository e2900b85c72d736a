"""The training of recipes/first-gpu.yaml as a user of TRL writes it by hand, to compare starts and steps with.

    python -m tools.benchmarks.first_gpu_by_hand MODEL [--steps 30] [--prompts 32] [--tokens 48] ...

Needs an NVIDIA GPU, TRL and vLLM (with --cpu vLLM for CPUs). MODEL is SmolLM2-135M-Instruct: a directory, or its name
on the hub. With other arguments it is the training of `python -m tools.gpu size`. The last line is JSON: seconds until
the first step begins, and of each step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

BEGAN = time.time()
HELD_OUT = 128
GROUP = 8
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


def main(argv: Sequence[str]) -> None:
    """Train, and print what happens when."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    for name, number in (
        ("steps", 30),
        ("prompts", 32),
        ("micro", 32),
        ("tokens", 48),
        ("max-length", 176),
    ):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--memory", type=float, default=0.3)
    parser.add_argument("--output", default="first-gpu-by-hand")
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args(argv)
    if options.cpu:
        from xp.worker.vllm_on_cpu import keep_plain_weights

        keep_plain_weights()
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from vllm import SamplingParams

    sums = [(x, y) for x in range(1, 21) for y in range(1, 21)]
    random.Random(7).shuffle(sums)
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {x} + {y}?"}], "answer": str(x + y)}
        for x, y in sums
    ]
    test = rows[:HELD_OUT]
    train = rows[HELD_OUT:]
    config = GRPOConfig(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.prompts * GROUP // options.micro,
        generation_batch_size=options.prompts * GROUP,
        num_generations=GROUP,
        max_completion_length=options.tokens,
        learning_rate=2e-5,
        lr_scheduler_type="constant",
        beta=0.0,
        loss_type="dapo",
        temperature=1.0,
        bf16=not options.cpu,
        use_cpu=options.cpu,
        gradient_checkpointing=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=options.memory,
        vllm_max_model_length=options.max_length,
        vllm_importance_sampling_correction=False,
        optim="adamw_torch_fused",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        seed=1,
        disable_tqdm=True,
    )

    ends: list[float] = []

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            ends.extend([time.time()] if not ends else [])

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" in (logs or {}):
                ends.append(time.time())
                say(f"step {state.global_step}: reward {logs['reward']:.3f}")

    say("imports")
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(train),
        callbacks=[Steps()],
    )
    say("model and engine")

    def evaluate(when: str) -> None:
        if options.no_evaluation or options.cpu:
            return
        sampling = SamplingParams(n=4, temperature=1.0, max_tokens=48, seed=1)
        answers = trainer.vllm_generation.llm.chat(
            [row["prompt"] for row in test], sampling, use_tqdm=False
        )
        pairs = [
            (output.text, str(row["answer"]))
            for row, asked in zip(test, answers, strict=True)
            for output in asked.outputs
        ]
        rewards = [grade(text, right) for text, right in pairs]
        say(f"held-out reward {when}: {sum(rewards) / len(rewards):.3f}")

    evaluate("before")
    trainer.train()
    trainer.vllm_generation.sync_weights()
    evaluate("after")
    trainer.save_model(f"{options.output}/model")
    say("end")
    steps = [end - begin for begin, end in pairwise(ends)]
    figures = {
        "start_s": ends[0] - BEGAN,
        "first_step_s": steps[0],
        "step_s": median(steps[1:] or steps),
    }
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))
    # vLLM's threads would hold up the end of the process.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
