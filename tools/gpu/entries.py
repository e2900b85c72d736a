"""The experiments: what each runs on a GPU, its time limit, and its smallest form on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.benchmarks.equivalence import ON_GPUS, shipped_model

SMOLLM2 = "models/SmolLM2-135M-Instruct"
LARGE = "models/Qwen2.5-1.5B-Instruct"
"""Made by tools.gpu.models: a trained model of 135 million parameters, and one of 1.5 billion with random weights."""


@dataclass(frozen=True)
class Part:
    """One process of an experiment."""

    name: str
    words: Sequence[str]
    """Overrides of xp, or arguments of a module."""
    module: str = "xp"
    of: str | None = None
    """Earlier part, a run, whose outputs are the module's last argument."""

    @property
    def is_run(self) -> bool:
        return self.module == "xp"


@dataclass(frozen=True)
class Entry:
    """An experiment."""

    question: str
    limit_s: int
    """Longest time of all parts together."""
    parts: Sequence[Part]


def merged(words: Sequence[str], changes: Mapping[str, str | None]) -> list[str]:
    """Overrides with other values for some keys; None leaves a key out."""
    pairs = {**dict(word.split("=", 1) for word in words), **changes}
    return [f"{key}={value}" for key, value in pairs.items() if value is not None]


CARD = ("hardware=auto", "backend.attention=sdpa", "evaluation.before_training=false")
FIRST = (*CARD, "recipes=first-gpu", f"model.path={SMOLLM2}")
"""SmolLM2 learns to add: 30 steps of 256 answers."""
SKYRL = ("backend=skyrl", "training.num_steps=3")
ONE_GPU = ("backend.parallel.tensor=1", "backend.engine.tensor_parallel=1")
SLIME = ("backend=slime", "env=whodunit_mini", *shipped_model(), "training.num_steps=3", *ONE_GPU)
REWARD = "env.reward_fn=tools.gpu.reward:length"
"""Episodes of random weights have equal rewards otherwise, and no update a gradient."""
SIZE = (
    *CARD,
    "model=qwen2.5-1.5b-instruct",
    f"model.path={LARGE}",
    "training.num_steps=4",
    "training.kl_coef=0",
    "training.max_logprob_gap=null",
    "training.checkpoint_every=1000",
    "evaluation.num_tasks=8",
    REWARD,
)
ANSWERS = (
    *SIZE,
    "env=sums",
    "training.prompts_per_step=16",
    "training.group_size=8",
    "training.micro_batch_size=8",
    "training.max_prompt_tokens=256",
    "training.max_tokens_per_turn=1024",
    "training.max_response_tokens=1024",
    "backend.engine.memory_fraction=0.4",
)
"""128 answers of 1,024 tokens a step; random weights rarely end a turn."""
TURNS = (
    *SIZE,
    "env=whodunit_mini",
    "training.prompts_per_step=8",
    "training.group_size=8",
    "training.micro_batch_size=2",
    "training.max_prompt_tokens=2048",
    "training.max_tokens_per_turn=1024",
    "training.max_response_tokens=8192",
    "model.max_context_tokens=10240",
)
PROGRAM = (
    "env=harness",
    "env.serve=xp.envs.builtin.whodunit_mini:WhodunitMini",
    "env.sandbox=none",
    "env.train.num_tasks=64",
    "env.held_out.num_tasks=8",
    "env.options.program=tests/programs",
    "env.options.command='python {program}/tools_agent.py {prompt_file}'",
    # So small a model solves nothing.
    REWARD,
    "training.num_steps=3",
    "training.max_prompt_tokens=1024",
    "training.max_tokens_per_turn=64",
    "training.max_response_tokens=512",
)
CORRECTED = (
    "backend=skyrl",
    "algorithm.importance_correction=token_truncate",
    "training.num_steps=10",
)
ADAPTERS = "model.lora={rank: 16, alpha: 32.0, dropout: 0.0, target_modules: null}"

ENTRIES = {
    "size": Entry(
        "A step of 1.5 billion parameters beside a script of TRL alone; the rollout beside LLM.generate.",
        540,
        (
            Part("xp", ANSWERS),
            Part(
                "by hand",
                (
                    *(LARGE, "--steps", "4", "--prompts", "16", "--micro", "8", "--tokens", "1024"),
                    *("--max-length", "1280", "--memory", "0.4", "--no-evaluation"),
                ),
                "tools.benchmarks.first_gpu_by_hand",
            ),
            Part(
                "rollout",
                (
                    *(
                        "--model",
                        LARGE,
                        "--episodes",
                        "128",
                        "--at-once",
                        "128",
                        "--rounds",
                        "2",
                        "--overrides",
                    ),
                    *merged(ANSWERS, {"model": None, "model.path": None}),
                ),
                "tools.benchmarks.bench_engine",
            ),
        ),
    ),
    "slime": Entry(
        "Slime on one GPU: three steps, gap, evaluation, export.",
        590,
        (Part("tiny", ("hardware=auto", "evaluation.before_training=false", *SLIME)),),
    ),
    "lora": Entry(
        "Adapters in bfloat16: the gap, and what is published beside what was trained.",
        240,
        (
            Part("lora", (*FIRST, ADAPTERS, "training.learning_rate=2.0e-4")),
            Part("published", (SMOLLM2,), "tools.gpu.drift", of="lora"),
        ),
    ),
    "skyrl": Entry(
        "SkyRL's gap: of a model of some hundred thousand parameters, and over as many steps as TRL's.",
        590,
        (
            Part(
                "tiny",
                (
                    *CARD,
                    "backend=skyrl",
                    "model=tiny",
                    "model.dtype=bfloat16",
                    "training.num_steps=3",
                ),
            ),
            Part("smollm2", (*FIRST, "backend=skyrl", "training.num_steps=30")),
        ),
    ),
    "fp8": Entry(
        "An engine in FP8 with a correction: gap and speed, beside bfloat16; acceptance of the base as a draft.",
        590,
        (
            Part("bfloat16", (*FIRST, *CORRECTED)),
            Part("fp8", (*FIRST, *CORRECTED, "backend.engine.quantization=fp8")),
            Part("fp8 cache", (*FIRST, *CORRECTED, "backend.engine.kv_cache_dtype=fp8")),
            Part("speculation", (SMOLLM2,), "tools.gpu.speculation", of="bfloat16"),
        ),
    ),
    "harness": Entry(
        "A program as the player: seconds that it waits, rows of tokens.",
        240,
        (Part("program", (*FIRST, *PROGRAM)),),
    ),
    "turns": Entry(
        "Episodes of many turns and 8,192 tokens, 1.5 billion parameters: seconds, share of waiting, memory.",
        590,
        (Part("trl", TURNS), Part("skyrl", (*TURNS, "backend=skyrl"))),
    ),
    "start": Entry(
        "Seconds before the first step: TRL, TRL after its engine was compiled once, SkyRL, SkyRL without CUDA graphs.",
        540,
        (
            *(Part(name, (*FIRST, "training.num_steps=3")) for name in ("trl", "trl again")),
            Part("skyrl", (*FIRST, *SKYRL)),
            Part("skyrl eager", (*FIRST, *SKYRL, "backend.engine.eager=true")),
        ),
    ),
}

TRL_PYTHON = str(Path(".venv-vllm/bin/python").absolute())
REHEARSAL: dict[str, str | None] = {
    **dict.fromkeys(
        ("recipes", "model.path", "model.dtype", "model.max_context_tokens", "backend.attention")
    ),
    **dict.fromkeys(
        (
            "training.max_prompt_tokens",
            "training.max_tokens_per_turn",
            "training.max_response_tokens",
        )
    ),
    "hardware": "cpu",
    "model": "tiny",
    "training.num_steps": "2",
    "training.prompts_per_step": "4",
    "training.group_size": "4",
    "training.micro_batch_size": "4",
    "training.max_logprob_gap": "null",
    "evaluation.num_tasks": "4",
}
"""Changes of a run's overrides on a CPU: the tiny model and two small steps."""
OF_BACKEND: dict[str, dict[str, str | None]] = {
    "trl": {
        "backend.engine.name": "vllm",
        "backend.engine.memory_fraction": "0.1",
        "backend.runtime.python": TRL_PYTHON,
    },
    # xp's own decoding.
    "skyrl": {
        **dict.fromkeys(("backend.engine.memory_fraction", "backend.engine.eager")),
        "backend.runtime.python": str(Path(".venv-skyrl/bin/python").absolute()),
    },
    # It takes GPUs only; tests/engines/slime_on_cpu/stage.py says what of it is real.
    "slime": {
        **dict.fromkeys(("model.path", "model.dtype")),
        **dict(word.split("=", 1) for word in (*ON_GPUS, *shipped_model())),
        "training.num_steps": "2",
        "training.prompts_per_step": "2",
        "training.group_size": "4",
        "training.micro_batch_size": "8",
        "backend.runtime.python": str(Path("tests/engines/slime_on_cpu/python").absolute()),
    },
}
"""More of them for each backend."""
FP8 = ("backend.engine.quantization=fp8", "backend.engine.kv_cache_dtype=fp8")
FP8_ON_CPU: dict[str, str | None] = {
    **OF_BACKEND["trl"],
    # vLLM 0.30 has no FP8 matrices for a CPU (`_C::static_scaled_fp8_quant` is empty); with an FP8 cache the engine
    # differs from the trainer too.
    "backend.engine.quantization": None,
    "backend.engine.kv_cache_dtype": "fp8",
}
"""Changes of runs with an engine in FP8."""


def rehearsed(words: Sequence[str]) -> list[str]:
    """The smallest form of a run, on a CPU."""
    backend = dict(word.split("=", 1) for word in words).get("backend", "trl")
    return merged(
        words, REHEARSAL | OF_BACKEND[backend] | (FP8_ON_CPU if set(FP8) & set(words) else {})
    )
