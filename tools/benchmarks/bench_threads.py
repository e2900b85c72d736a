"""Decoding of xp's own engine on the CPU with one thread and with two, by the size of the model.

    python -m tools.benchmarks.bench_threads [--episodes 64] [--tokens 40] [--rounds 3]

The models have random weights; their prompts have 300 tokens, eight episodes share one. `SMALL` in
xp/worker/engines/transformers_engine.py is chosen by these figures.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from statistics import median
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from xp.spec import Sampling
from xp.worker.engines import transformers_engine as engine
from xp.worker.engines.conversation import Opening

SHAPES = ((96, 2), (192, 4), (256, 4), (320, 6), (576, 12))
"""Hidden size and number of layers; the first is the embedded default's, the last SmolLM2-135M's width."""
PROMPT = 300
GROUP = 8
END = 2
THREADS = (1, 2)


def main(argv: list[str] | None = None) -> None:
    """Print milliseconds of a decoding step, the median of the rounds, for each model and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("episodes", 64), ("tokens", 40), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args(argv or [])
    for hidden_size, num_layers in SHAPES:
        model = make_model(hidden_size, num_layers)
        found: dict[int, list[float]] = {count: [] for count in THREADS}
        for _ in range(given.rounds):
            for count in THREADS:
                found[count].append(step_ms(model, count, given.episodes, given.tokens))
        one, two = (median(found[count]) for count in THREADS)
        print(
            f"hidden_size {hidden_size}: one thread {one:.1f} ms, two {two:.1f} ms a token of all ({two / one:.2f})"
        )


def make_model(hidden_size: int, num_layers: int) -> Any:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": 8 * hidden_size // 3,
        "num_hidden_layers": num_layers,
    }
    heads = max(1, hidden_size // 64)
    config = Qwen3Config(
        vocab_size=700, num_attention_heads=heads, num_key_value_heads=heads, head_dim=64, **sizes
    )
    return Qwen3ForCausalLM(config).eval()


def step_ms(model: Any, num_threads: int, episodes: int, tokens: int) -> float:
    """Milliseconds of a step that generates one token for every episode."""
    torch.set_num_threads(num_threads)
    small = engine.SMALL
    engine.SMALL = 0
    try:
        prompts = (
            torch.randint(3, 700, (episodes // GROUP, PROMPT)).repeat_interleave(GROUP, 0).tolist()
        )
        names = [str(number) for number in range(len(prompts))]
        opening = Opening(prompts, names, len(prompts), lambda _: None)
        sampling = Sampling(
            max_prompt_tokens=PROMPT,
            max_tokens_per_turn=tokens,
            max_response_tokens=2 * tokens,
            temperature=1.0,
            top_p=1.0,
            top_k=None,
            min_p=0.0,
            repetition_penalty=1.0,
            stop=(),
        )
        writing = engine.TransformersEngine(model, opening, [END], sampling, "1")
        for number in range(len(prompts)):
            writing.begin(number)
        writing.step(True)
        began = time.perf_counter()
        steps = 0
        while writing.is_generating:
            writing.step(True)
            steps += 1
        return 1000 * (time.perf_counter() - began) / max(1, steps)
    finally:
        engine.SMALL = small


if __name__ == "__main__":
    main(sys.argv[1:])
