"""Pictures on the real vLLM on this machine's CPU, in one process, and on servers of TRL and SkyRL (make test-vllm)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.engines import needs_vllm
from tests.engines.pictures_on_vllm import SPREAD, TEXT
from tests.support.child import ended
from tests.support.skyrl_served import result_of
from tests.support.tiny_vision import VISION
from tools.tiny_vlm.build import write_model
from xp.episode.metrics_file import read_metrics

pytest.importorskip("torchvision", reason="vLLM reads pictures with it")

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 1e-4
"""Largest gap between vLLM and the model's own forward pass in float32."""
REPOSITORY = Path(__file__).parents[2]
ENVIRON: Mapping[str, str] = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(REPOSITORY),
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "XP_ONE_MACHINE": "1",
}
SMALL = (
    *("model=tiny_vlm", "backend.engine.name=vllm", "backend.engine.memory_fraction=0.1"),
    *("training.num_steps=3", "training.prompts_per_step=3", "training.group_size=2"),
    *("training.micro_batch_size=2", "training.learning_rate=1e-3", "training.warmup_updates=0"),
    *("training.max_tokens_per_turn=6", "training.max_response_tokens=80"),
)
TWO_BOARDS = (
    *("env=graded", "env.grader=tests.graders_under_test.showing:TwoBoards", "env.max_turns=2"),
    *("env.held_out.split=test", "env.held_out.num_tasks=2"),
)
"""Prompts have 0, 1 and 2 pictures, and each has one more in its second turn."""


def ran(*words: str, **more: str) -> str:
    """What a program of this Python writes."""
    done = ended([sys.executable, "-m", *words], cwd=REPOSITORY, env={**ENVIRON, **more})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_vllms_log_probabilities_are_the_models_own_over_two_turns(
    family: str, tmp_path: Path
) -> None:
    """One of the pictures has sides that are no multiples of a patch."""
    said = ran(
        "tests.engines.pictures_on_vllm", family, str(tmp_path), VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )
    line = next(line for line in said.splitlines() if line.startswith("RESULT "))
    found = json.loads(line.removeprefix("RESULT "))
    print(family, found)
    assert found["pictures"] == [2, 1, 3, 0]
    assert max(found["gaps"]) < BAR
    assert found["change"] > 10 * BAR


def steps(outputs: Path, *words: str) -> list[dict[str, Any]]:
    """Metrics of each step of a run."""
    ran("xp", *SMALL, *words, f"outputs={outputs}", f"backend.runtime.python={sys.executable}")
    (run,) = (outputs / "runs").iterdir()
    lines = list(read_metrics(run / "metrics.jsonl", "train"))
    print([f"{line['training/logprob_gap']:.1e}" for line in lines])
    return lines


@pytest.mark.parametrize(
    "words",
    [
        ("backend=trl",),
        ("backend=trl", "model.train_vision=true"),
        ("backend=trl", "backend.engine.placement=separate", "backend.engine.accelerators=1"),
        # Rewards of a group may be equal: the entropy bonus moves the weights in each step.
        ("backend=skyrl", "hardware=cpu", "training.entropy_coef=0.01"),
    ],
    ids=[
        "in the process",
        "in the process with its vision part",
        "on a server",
        "on SkyRL's server",
    ],
)
def test_engine_and_update_agree_after_every_update(words: tuple[str, ...], tmp_path: Path) -> None:
    if "backend=skyrl" in words:
        pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")
    lines = steps(tmp_path, *words, *TWO_BOARDS)
    assert len(lines) == 3
    for line in lines:
        assert line["episodes/void"] == 0.0
        assert line["environment/turns"] == 2.0
        assert 1.0 < line["pictures/read"] < 3.0
        assert line["training/grad_norm"] > 0
        assert line["training/logprob_gap"] < BAR


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_skyrls_server_agrees_with_its_update(family: str, tmp_path: Path) -> None:
    """vLLM normalizes the pixels of Qwen2-VL itself, and gives back those before that; Qwen3-VL's are normalized."""
    pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")
    model = write_model(family, tmp_path / "model", TEXT, VISION, spread=SPREAD)
    found = result_of("tests.engines.skyrl_pictures_client", model, tmp_path)
    print(family, found)
    assert found["grids"] == [2, 2, 1, 1, 0, 0]
    assert max(found["gaps"]) < BAR
    assert found["change"] > 10 * BAR
