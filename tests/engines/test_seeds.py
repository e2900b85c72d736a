"""Seeded requests of the real vLLM on a CPU, whose prompts are computed whole or in parts (make test-vllm)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.engines import needs_vllm
from tests.support.child import ended
from tests.support.tiny import leave_model

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
PROGRAM = """
import json, sys
from xp.worker.vllm_on_cpu import take_back_draws
from vllm import LLM, SamplingParams

take_back_draws()
llm = LLM(model=sys.argv[1], dtype="float32", max_model_len=300, max_num_seqs=8, gpu_memory_utilization=0.05,
          max_num_batched_tokens=int(sys.argv[2]), enable_prefix_caching=False, disable_log_stats=True)
prompts = [{"prompt_token_ids": [3 + (number * 7 + place) % 200 for place in range(150)]} for number in range(4)]
parameters = [SamplingParams(max_tokens=12, seed=number, ignore_eos=True) for number in range(4)]
written = llm.generate(prompts, parameters, use_tqdm=False)
print("RESULT", json.dumps([list(one.outputs[0].token_ids) for one in written]))
"""


def written(model: Path, tokens_at_once: int) -> list[list[int]]:
    environ = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.getcwd(),
    }
    command = [sys.executable, "-c", PROGRAM, str(model), str(tokens_at_once)]
    done = ended(command, env=environ)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    found: list[list[int]] = json.loads(line.removeprefix("RESULT"))
    return found


def test_a_seeds_text_is_the_same_for_prompts_in_parts(tmp_path: Path) -> None:
    leave_model(tmp_path)
    whole = written(tmp_path, 2048)
    assert len({tuple(ids) for ids in whole}) == 4
    assert written(tmp_path, 64) == whole
