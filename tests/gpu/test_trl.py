"""backend=trl on real accelerators with the real vLLM; not run yet, but runs like them were (docs/results.md).

python -m pytest -m gpu tests/gpu -rs
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

from tests.support.evaluations import evaluated
from xp.spec.hardware import visible_gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        not visible_gpus() or importlib.util.find_spec("vllm") is None,
        reason="needs an NVIDIA GPU and vLLM: nvidia-smi shows no GPU here, or `import vllm` fails",
    ),
]
MODEL = os.environ.get("XP_TEST_MODEL", "Qwen/Qwen2.5-0.5B-Instruct")
"""Hugging Face id or directory of a small model."""
LORA = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"


def ran(directory: Path, gpus: int, *overrides: str) -> list[dict[str, Any]]:
    """Three steps on the bundled mysteries, and an evaluation; the training's lines of metrics."""
    if len(visible_gpus()) < gpus:
        pytest.skip(f"needs {gpus} GPUs, there are {len(visible_gpus())}")
    words = [
        *("hardware=a100x1", f"hardware.accelerators_per_node={gpus}", "model=hf"),
        *(f"model.path={MODEL}", f"outputs={directory}", "env.held_out.num_tasks=16"),
        *("training.num_steps=3", "training.prompts_per_step=4", "training.micro_batch_size=4"),
        *(
            "training.max_response_tokens=1024",
            "training.max_tokens_per_turn=128",
            "backend.engine.memory_fraction=0.4",
        ),
        *("algorithm.importance_correction=token_truncate", *overrides),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "xp", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    (run,) = (directory / "runs").iterdir()
    assert (run / "model/model.safetensors").is_file()
    assert evaluated(run / "attempt_1/evaluate")["after"]["summary"]["num_episodes"] == 16
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == "train"]


@pytest.mark.parametrize(
    ("gpus", "overrides"),
    [
        (1, ()),
        (1, (LORA,)),
        (2, ()),
        (2, ("backend.parallel.strategy=ddp", "backend.engine.tensor_parallel=2")),
        (2, ("backend.engine.placement=separate", "backend.engine.accelerators=1")),
    ],
    ids=["one", "adapters", "sharded", "one engine on two", "an engine of its own"],
)
def test_a_run_ends_and_its_engine_agrees_with_its_trainer(
    gpus: int, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    lines = ran(tmp_path, gpus, *overrides)
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        # bfloat16 in the engine against float32 weights in the trainer; weights of another step differ by far more.
        assert line["training/logprob_gap"] < 0.1
