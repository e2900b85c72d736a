"""A small Slime run on two pretended GPUs: its spec, and its job started as a launcher starts it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from tests.trainers.fake_sglang import FakeSglang, TinyPolicy
from tests.trainers.slime_setup import detective
from xp.backends.slime.worker.config import SlimeCommand, SlimeTrainConfig
from xp.composition import compose
from xp.execution.launchers.files import write_files
from xp.planning.job import Job
from xp.spec import RunSpec

STEPS = 2
PROMPTS = 2
GROUP = 4
MYSTERIES = (
    *(
        "env=whodunit_mini",
        "env.train.num_tasks=16",
        "env.held_out.num_tasks=4",
        "evaluation.samples_per_task=2",
    ),
    *("training.max_tokens_per_turn=60", "training.max_response_tokens=300"),
)


def spec_of(model: Path, *more: str, env: Sequence[str] = MYSTERIES) -> RunSpec:
    """The tiny model on two pretended GPUs."""
    config = json.loads((model / "config.json").read_text())
    names = {
        "hidden_size": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "num_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "intermediate_size": "intermediate_size",
        "vocab_size": "vocab_size",
    }
    return compose(
        [
            *("backend=slime", "hardware=a100x2", "model=qwen3-4b", f"model.path={model}"),
            *(f"model.architecture.{ours}={config[theirs]}" for ours, theirs in names.items()),
            *("model.architecture.rope_theta=10000.0", "model.max_context_tokens=1024"),
            "model.chat_template.enable_thinking=null",
            *(
                f"training.num_steps={STEPS}",
                f"training.prompts_per_step={PROMPTS}",
                f"training.group_size={GROUP}",
            ),
            *(
                "training.max_prompt_tokens=700",
                "training.micro_batch_size=1",
                "training.kl_coef=0",
            ),
            *("env.limits.max_sessions=16", "backend.parallel.tensor=1"),
            *env,
            *more,
        ]
    )


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeSglang]:
    tokenizer, model = tokenizer_and_model()
    policy = TinyPolicy(model, tokenizer.eos_token_id, detective(random.Random(3)))
    with FakeSglang(policy, tokenizer.decode) as server:
        yield server


def run(job: Job, root: Path) -> str:
    """Run a job's program to its end; gives back what it said."""
    log = root / "log.txt"
    code = start(job, root, log).wait(1100)
    assert code == 0, log.read_text()[-6000:]
    return log.read_text()


def start(job: Job, root: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a job's program as a launcher would; two GPUs and eight CPUs are what Ray believes to have."""
    write_files(job.files, root)
    argv = [sys.executable if word == "python" else word for word in job.argv]
    paths = [str(Path.cwd()), *os.environ["PYTHONPATH"].split(os.pathsep)]
    environ = {
        **os.environ,
        **job.env,
        "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in paths if path),
        "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 8, "GPU": 2}),
        "XP_TEST_SECRET": "canary-of-the-rehearsal",
    }
    with log.open("wb") as file:
        return subprocess.Popen(
            argv,
            cwd=root,
            env=environ,
            stdout=file,
            stderr=subprocess.STDOUT,
        )


def rehearsed(job: Job, engine: FakeSglang, more: Sequence[str]) -> Job:
    """The same job, but on an engine that is there already."""
    (name,) = (word for word in job.argv if word.endswith("/config.json"))
    config = SlimeTrainConfig.from_json(job.files[name])
    command: SlimeCommand = config.command
    flags = (*command.flags, "--rollout-external-engine-addrs", engine.address, *more)
    config = replace(config, command=replace(command, flags=flags))
    return replace(job, files={**job.files, name: config.to_json()})
