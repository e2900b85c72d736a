"""The files of a run whose engine is the real vLLM on a CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.families import SPREAD, write_family
from tests.support.sections import with_model
from tests.support.tiny import leave_model
from xp.backends.trl.control.render import render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.worker.places import RunPaths


def configured(
    directory: Path, steps: int, *overrides: str, family: str | None = None
) -> dict[str, str]:
    """The files of a rendered `hardware=cpu backend.engine.name=vllm` in a directory, and the job's variables.

    Args:
        directory: for the files.
        steps: of the training.
        overrides: more of the spec.
        family: key of tests.support.families. None means the network that xp ships.
    """
    root = str(directory)
    spec = compose(
        [
            *(
                "backend.engine.name=vllm",
                f"training.num_steps={steps}",
                "training.prompts_per_step=2",
            ),
            *(
                "training.group_size=4",
                "training.micro_batch_size=4",
                "training.learning_rate=0.01",
            ),
            *(
                "training.shuffle=false",
                "training.warmup_updates=0",
                "training.max_tokens_per_turn=6",
            ),
            "backend.engine.memory_fraction=0.1",
            *(
                "training.max_response_tokens=300",
                "training.entropy_coef=0.5",
                "training.max_logprob_gap=null",
            ),
            *overrides,
        ]
    )
    job = next(
        stage.job
        for stage in render(spec, RunPaths(root, 1, f"{root}/tasks"))
        if stage.name == "train"
    )
    if family is None:
        leave_model(directory / "base")
    else:
        write_family(family, directory / "base", spread=SPREAD)
    for path, text in job.files.items():
        if "/train/" in path:
            (directory / Path(path).name).write_text(text)
    config = TRLTrainConfig.from_json((directory / "config.json").read_text())
    config = replace(
        with_model(config, f"{root}/base"),
        grpo={**config.grpo, "save_strategy": "no"},
    )
    (directory / "config.json").write_text(config.to_json())
    return {**os.environ, **job.env, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}


def trained(
    directory: Path, environ: dict[str, str], faults: Any = None
) -> tuple[list[float], dict[str, Any]]:
    """The gap of each step, and what the run said."""
    words = [f"{directory}/config.json", f"{directory}/result.json", json.dumps(faults or {})]
    command = ["-m", "tests.engines.trl_training", *words]
    if (directory / "accelerate.yaml").exists():
        command = [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            f"{directory}/accelerate.yaml",
            *command,
        ]
    done = subprocess.run(
        [sys.executable, *command], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    metrics = directory / "attempt_1/train/metrics.jsonl"
    lines = (
        [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    )
    for line in lines:
        assert line["training/grad_norm"] > 0
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return [line["training/logprob_gap"] for line in lines], found
