"""backend=slime on a real accelerator with its real SGLang and Megatron; nobody has run these yet.

make test-gpu SLIME_PATH=... MEGATRON_PATH=..., in Slime's own image or with its packages installed
"""

from __future__ import annotations

import importlib.util
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
        not visible_gpus()
        or not os.environ.get("SLIME_PATH")
        or importlib.util.find_spec("sglang") is None,
        reason="needs an NVIDIA GPU, SLIME_PATH and SGLang: nvidia-smi, the variable or `import sglang` says no",
    ),
]
MODEL = os.environ.get("XP_TEST_SLIME_MODEL", "Qwen/Qwen3-4B")
"""Hugging Face id or directory of weights that model=qwen3-4b describes, Slime's smallest here."""
BFLOAT16 = 0.1
"""Slime's own bound (--ci-train-rollout-logprob-abs-diff-threshold)."""


def xp(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xp", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]


def lines(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["stage"] == "train"]


def test_two_steps_from_megatron_to_sglang_and_a_resumed_third(tmp_path: Path) -> None:
    """Shows conversion to Megatron's format, its update, the transfer to SGLang over CUDA IPC, and going on."""
    xp(
        *(
            "backend=slime",
            "hardware=a100x1",
            "model=qwen3-4b",
            f"model.path={MODEL}",
            f"outputs={tmp_path}",
        ),
        *(
            "training.num_steps=2",
            "training.prompts_per_step=2",
            "training.group_size=4",
            "training.checkpoint_every=1",
        ),
        *(
            "training.max_response_tokens=1024",
            "training.max_tokens_per_turn=128",
            "backend.parallel.tensor=1",
        ),
        *("env.held_out.num_tasks=4", "backend.engine.memory_fraction=0.4"),
    )
    (run,) = (tmp_path / "runs").iterdir()
    xp(f"resume={run.name}", f"outputs={tmp_path}", "training.num_steps=3")
    assert [line["step"] for line in lines(run)] == [1, 2, 3]
    for line in lines(run):
        assert line["training/logprob_gap"] < BFLOAT16
        assert line["training/grad_norm"] > 0
