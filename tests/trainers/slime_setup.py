"""What tests of Slime share: whether its real code is here, its real arguments, a tiny policy and a worker of xp."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.sections import PLACES, limited, sampling_of, unevaluated
from tests.support.tiny import leave_model, tokenizer_and_model, turn_ids
from tests.trainers.fake_sglang import FakeSglang, Says, TinyPolicy
from xp.backends.slime.worker.config import (
    INPUT_KEY,
    METADATA_KEY,
    TOOL_KEY,
    WORKER_ATTRIBUTE,
    WorkerConfig,
)
from xp.backends.slime.worker.rollout_process import Worker
from xp.spec import Algorithm, Evaluation, Sampling, Training
from xp.tasks.row import TaskRow
from xp.worker import slime_names as hooks

IS_HERE = (
    os.environ.get("SLIME_ACCELERATOR") == "none-here"
    and find_spec("sglang") is not None
    and all(os.environ.get(name) for name in ("SLIME_PATH", "MEGATRON_PATH"))
)
needs_slime = pytest.mark.skipif(
    not IS_HERE,
    reason="Slime's own code is not here: make test-slime SLIME_PATH=/its/checkout MEGATRON_PATH=/that/of/Megatron-LM",
)

LIMITS = sampling_of(700, 60, 400)


SECTIONS: dict[str, Any] = {"algorithm": Algorithm, "training": Training, "evaluation": Evaluation}


def worker_config(
    root: Path,
    limits: Sampling = LIMITS,
    evaluation_limits: Sampling = LIMITS,
    steps: int = 2,
    **changes: Any,
) -> WorkerConfig:
    """A stage's, for groups of four; changes are of keys of the algorithm, the training or the evaluation."""
    keys = {
        "max_void_fraction": 0.5,
        "max_logprob_gap": None,
        "group_size": 4,
        "prompts_per_step": 2,
    } | changes
    named = {}
    for section, kind in SECTIONS.items():
        fields = kind.model_fields.keys() & keys.keys()
        named.update({f"{section}__{name}": keys[name] for name in fields})
    spec = unevaluated(limited(limits, evaluation_limits, **named))
    config = WorkerConfig(
        root=str(root),
        spec=spec,
        places=PLACES,
        stage="train",
        steps=steps,
    )
    (root / config.stage_dir).mkdir(parents=True, exist_ok=True)
    return config


def tiny_directory(root: Path) -> Path:
    """The tiny model as a Hugging Face directory."""
    directory = root / "models" / "tiny"
    leave_model(directory)
    return directory


def slime_arguments(model: Path, *more: str) -> Any:
    """Slime's real parser and validation on a command line for rollouts alone."""
    from slime.utils.arguments import parse_args

    flags = [
        *("--hf-checkpoint", str(model), "--debug-rollout-only", "--rollout-num-gpus", "1"),
        *("--rollout-num-gpus-per-engine", "1", "--num-rollout", "2", "--rollout-batch-size", "2"),
        *(
            "--n-samples-per-prompt",
            "4",
            "--global-batch-size",
            "8",
            "--rollout-temperature",
            "1.0",
        ),
        *(
            "--rollout-max-response-len",
            "60",
            "--input-key",
            INPUT_KEY,
            "--metadata-key",
            METADATA_KEY,
        ),
        *("--tool-key", TOOL_KEY, "--custom-generate-function-path", hooks.GENERATE),
        *(
            "--custom-reward-post-process-path",
            hooks.ADVANTAGES,
            "--custom-rollout-log-function-path",
        ),
        *(hooks.LOG_ROLLOUT, "--advantage-estimator", "grpo", *more),
    ]
    return parsed(flags, parse_args)


def parsed(flags: Sequence[str], parse: Any) -> Any:
    """The values that a parser reads from a command line in sys.argv."""
    before = sys.argv
    sys.argv = ["train.py", *flags]
    try:
        return parse()
    finally:
        sys.argv = before


@contextmanager
def engine(args: Any, says: Says | None = None) -> Iterator[FakeSglang]:
    """The fake engine with the tiny model behind it, where Slime's client looks for its router."""
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils import http_utils
    from slime.utils.misc import SingletonMeta

    tokenizer, model = tokenizer_and_model()
    SingletonMeta._instances.pop(GenerateState, None)
    http_utils._http_client = None
    with FakeSglang(TinyPolicy(model, tokenizer.eos_token_id, says), tokenizer.decode) as server:
        host, port = server.address.split(":")
        args.sglang_router_ip = host
        args.sglang_router_port = int(port)
        http_utils.init_http_client(args)
        yield server


def put_worker(args: Any, config: WorkerConfig, mix: Any, recorder: Any) -> Worker:
    """A worker with fake environments, where Slime's arguments lead to it."""
    from xp.backends.slime.worker import rollout_process as worker

    path = f"{config.root}/worker.json"
    setattr(args, WORKER_ATTRIBUTE, path)
    made = worker._workers[path] = Worker(config, mix, recorder)
    made.chat(tokenizer_and_model()[0])  # as the first episode of a process does
    return made


def group_of(row: TaskRow, size: int, group_index: int = 0) -> list[Any]:
    """Fresh samples of one task, as Slime's data source makes them."""
    from slime.utils.types import Sample

    from xp.backends.slime.worker.train import slime_line

    samples = []
    for number in range(size):
        line = slime_line(row)
        metadata = {**line[METADATA_KEY], "tools": line[TOOL_KEY]}
        index = group_index * size + number
        samples.append(
            Sample(
                prompt=line[INPUT_KEY],
                metadata=metadata,
                index=index,
                group_index=group_index,
            )
        )
    return samples


def written_by_policy(sample: Any) -> list[int]:
    """The token ids of a sample that the loss may see."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    return [token for token, mask in zip(response, sample.loss_mask, strict=True) if mask]


def detective(chooser: Any) -> Says:
    """Plays the bundled mysteries by words: one interview, then an accusation drawn by `chooser`."""
    tokenizer, _ = tokenizer_and_model()
    from xp.envs.builtin.mystery import ROOMS, SUSPECTS, WEAPONS

    def says(ids: list[int]) -> list[int]:
        text = tokenizer.decode(ids)
        named = [name for name in SUSPECTS if name in text]
        if "<tool_response>" not in text.rpartition("<|im_start|>user")[2]:
            call = f'{{"name": "interview", "arguments": {{"suspect": "{named[0]}"}}}}'
        else:
            rooms = [room for room in ROOMS if re.search(re.escape(room), text)]
            call = (
                f'{{"name": "accuse", "arguments": {{"suspect": "{chooser.choice(named)}",'
                f' "weapon": "{chooser.choice(WEAPONS)}", "room": "{chooser.choice(rooms)}"}}}}'
            )
        return turn_ids(f"<tool_call>\n{call}\n</tool_call>")

    return says


def result_of(program: str, *words: str) -> Any:
    """What a program of tests/trainers prints after RESULT."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.trainers.{program}", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    print(line)
    return json.loads(line.removeprefix("RESULT"))
