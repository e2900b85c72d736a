"""backend=skyrl on real accelerators with its real vLLM; not run yet, but runs like them were (docs/results.md).

make test-gpu, after `python -m xp install backend=skyrl hardware=a100x1`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xp.spec.hardware import visible_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not visible_gpus(), reason="needs an NVIDIA GPU: nvidia-smi shows none here"
    ),
]
MODEL = os.environ.get("XP_TEST_MODEL", "Qwen/Qwen2.5-0.5B-Instruct")
"""Hugging Face id or directory of a small model."""
BFLOAT16 = 0.1
"""Slime's own bound for engine and trainer in bfloat16; weights of another step or untied embeddings differ by more."""


def words(directory: Path, *overrides: str) -> list[str]:
    return [
        *(
            "backend=skyrl",
            "hardware=a100x1",
            "hardware.accelerators_per_node=1",
            "model=hf",
            f"model.path={MODEL}",
        ),
        *(f"outputs={directory}", "env.held_out.num_tasks=8", "training.prompts_per_step=4"),
        *(
            "training.micro_batch_size=4",
            "training.max_response_tokens=1024",
            "training.max_tokens_per_turn=128",
        ),
        *("training.checkpoint_every=1", "backend.engine.memory_fraction=0.4", *overrides),
    ]


def xp(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xp", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["stage"] == "train"]


def test_two_steps_with_weights_over_cuda_ipc_and_a_third_after_resuming(tmp_path: Path) -> None:
    """Shows vLLM, CUDA IPC, FSDP2 on CUDA, FlashAttention or sdpa, checkpoints of GPU state, and going on from one."""
    xp(*words(tmp_path, "training.num_steps=2"))
    (run,) = (tmp_path / "runs").iterdir()
    assert [line["step"] for line in lines(run)] == [1, 2]
    xp(f"resume={run.name}", f"outputs={tmp_path}", "training.num_steps=3")
    assert [line["step"] for line in lines(run)] == [1, 2, 3]
    assert [line["attempt"] for line in lines(run)] == [1, 1, 2]
    for line in lines(run):
        assert line["training/logprob_gap"] < BFLOAT16
        assert line["training/grad_norm"] > 0
    assert (run / "model/model.safetensors").is_file()


def test_adapters_reach_the_engine(tmp_path: Path) -> None:
    """Shows LoRA: SkyRL saves the adapters to disk and vLLM loads them after each step."""
    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    xp(*words(tmp_path, "training.num_steps=2", lora, "training.learning_rate=1e-4"))
    (run,) = (tmp_path / "runs").iterdir()
    assert max(line["training/logprob_gap"] for line in lines(run)) < BFLOAT16


@pytest.mark.skipif(len(visible_gpus()) < 2, reason="needs two GPUs: one for the engine alone")
def test_an_engine_of_its_own_gets_the_weights_over_nccl(tmp_path: Path) -> None:
    """Shows SkyRL's other placement: weights are broadcast to engines on accelerators of their own."""
    apart = ("backend.engine.placement=separate", "backend.engine.accelerators=1")
    xp(*words(tmp_path, "training.num_steps=2", "hardware.accelerators_per_node=2", *apart))
    (run,) = (tmp_path / "runs").iterdir()
    assert max(line["training/logprob_gap"] for line in lines(run)) < BFLOAT16
