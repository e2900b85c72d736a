"""vLLM under TRL where no GPU is: TRL's own engine code and weight sync for real, vLLM itself played by a stub.

pytestmark = pytest.mark.timeout(1500)

The stub (tests/trainers/fake_vllm) proves the order of calls and the sums, and nothing about vLLM; tests/gpu does.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fake_vllm import FAKE, SAMPLING
from tests.support.http_server import HttpServer, Reply, Request, http_server
from tests.support.jobs import train_job
from tests.support.sections import replace, with_model
from tests.support.tiny import leave_model
from xp.backends.trl.worker.colocated import choose_port
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.worker.engines.completions import CompletionClient, ServerEngine
from xp.worker.engines.conversation import GenerationRequest, Opening
from xp.worker.places import RunPaths


def colocated(directory: Path, processes: int, *overrides: str) -> dict[str, Any]:
    """Two steps of a rendered GPU spec on this machine's CPU."""
    root = str(directory)
    spec = compose(
        [
            *("hardware=a100x2", f"hardware.accelerators_per_node={processes}", "model=tiny"),
            # So little that an engine must sleep.
            "hardware.accelerator_memory_gb=4",
            *("training.num_steps=2", "training.prompts_per_step=2", "training.group_size=4"),
            *(
                f"training.micro_batch_size={8 // processes}",
                "training.learning_rate=0.01",
                "training.shuffle=false",
            ),
            *(
                "training.warmup_updates=0",
                "training.max_tokens_per_turn=6",
                "training.max_response_tokens=300",
            ),
            *("algorithm.importance_correction=token_truncate", *overrides),
        ]
    )
    job = train_job(spec, RunPaths(root, 1, f"{root}/tasks"))
    files = {Path(path).name: text for path, text in job.files.items() if "/train/" in path}
    leave_model(directory / "base")
    config = TRLTrainConfig.from_json(files["config.json"])
    on_cpu = {**config.grpo, "use_cpu": True, "optim": "adamw_torch", "save_strategy": "no"}
    (directory / "config.json").write_text(
        replace(with_model(config, f"{root}/base"), grpo=on_cpu).to_json()
    )
    words = ["-m", "tests.trainers.trl_colocated", f"{root}/config.json", f"{root}/result.json"]
    if processes > 1:
        (directory / "accelerate.yaml").write_text(
            yaml.safe_dump(yaml.safe_load(files["accelerate.yaml"]) | {"use_cpu": True})
        )
        words = [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            f"{root}/accelerate.yaml",
            *words,
        ]
    environ = {
        **os.environ,
        **job.env,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{FAKE}{os.pathsep}{os.getcwd()}",
    }
    done = subprocess.run(
        [sys.executable, *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


@pytest.mark.integration
@pytest.mark.parametrize(
    ("processes", "overrides"),
    [
        (1, ("backend.engine.memory_fraction=0.4",)),
        pytest.param(1, ("hardware.accelerator_memory_gb=80",), marks=pytest.mark.slow),
        pytest.param(
            1,
            ("model.lora={rank: 4, alpha: 8.0, dropout: 0.0, target_modules: null}",),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            2,
            ("backend.engine.tensor_parallel=2", "backend.parallel.strategy=ddp"),
            marks=pytest.mark.slow,
        ),
        pytest.param(2, ("backend.parallel.strategy=fsdp2",), marks=pytest.mark.slow),
    ],
    ids=[
        "alone",
        "awake",
        "with adapters",
        "one engine on two ranks",
        "an engine on each of two shards",
    ],
)
def test_a_colocated_engine_writes_with_the_weights_of_the_step(
    processes: int, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    found = colocated(tmp_path, processes, *overrides)
    first, second = found["lines"]
    for line in (first, second):
        # What the engine said of its tokens, the trainer says too: the weights are the same, and no token is misplaced.
        assert line["sampling/sampling_logp_difference/max"] < 1e-3
        assert line["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0, abs=1e-3)
    for calls in found["calls"]:
        assert calls.count("load") == 2
        if "hardware.accelerator_memory_gb=80" in overrides:
            assert not {"sleep", "wake kv_cache"} & set(calls)
            continue
        # Awake for all turns of a rollout, asleep while the policy learns.
        assert calls.count("wake kv_cache") == 2
        assert calls[0] == calls[-1] == "sleep"
    if "backend.engine.memory_fraction=0.4" in overrides:
        given = found["given"]
        assert given["gpu_memory_utilization"] == "0.4"
        assert given["max_model_len"] == str(600 + 300)  # model=tiny: prompt; here: response
        assert given["max_num_seqs"] == "8"
        assert given["logprobs_mode"] == "processed_logprobs"
    if "backend.engine.tensor_parallel=2" in overrides:
        # The first rank has one turn and the second more: both take part in all.
        assert found["calls"][0].count("step 8") >= 2
        assert any(call in found["calls"][0] for call in ("step 3", "step 4"))
        assert found["calls"][0] == found["calls"][1]


def repeats_the_last_token(request: Request) -> Reply:
    """The turn of the model: the prompt's last token and the end."""
    ids = [request.json["prompt"][-1], 2]
    return Reply({"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": [-0.25, -0.5]}}]})


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server(repeats_the_last_token) as server:
        yield server


@pytest.fixture
def client(server: HttpServer) -> CompletionClient:
    return CompletionClient(server.url, SAMPLING, [2], "vllm.log")


def test_a_server_gets_token_ids_and_says_all_of_the_sampling(
    server: HttpServer, client: CompletionClient
) -> None:
    first, second = (
        client.answer(GenerationRequest(ids, limit, 41)) for ids, limit in (([7, 8], 3), ([9], 4))
    )
    assert list(first.ids) == [8, 2]
    assert list(first.logprobs) == [-0.25, -0.5]
    assert list(second.ids) == [9, 2]
    asked = next(one.json for one in server.requests if one.json["prompt"] == [7, 8])
    assert asked == {
        "model": "policy",
        "prompt": [7, 8],
        "max_tokens": 3,
        "seed": 41,
        "n": 1,
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 0,
        "stop_token_ids": [2],
        "return_token_ids": True,
    }


def test_an_engine_over_a_server_keeps_ids_log_probabilities_and_masks_together(
    server: HttpServer, client: CompletionClient
) -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    engine = ServerEngine(
        client,
        Opening(
            [[5], [6]],
            ["a/0", "a/1"],
            2,
            inbox.put,
        ),
        "1",
        lambda _: False,
    )
    assert not engine.is_generating
    for number in (0, 1):
        engine.begin(number)
    turns = sorted((inbox.get(timeout=200), inbox.get(timeout=200)), key=lambda turn: turn.number)
    assert [(turn.number, turn.ids, turn.is_cut) for turn in turns] == [
        (0, [5, 2], False),
        (1, [6, 2], False),
    ]
    engine.end(0)
    engine.continue_with(1, [30, 31])
    assert inbox.get(timeout=200).number == 1
    conversation = engine.conversations[1]
    assert conversation.completion_ids == [6, 2, 30, 31, 31, 2]
    assert conversation.mask == [1, 1, 0, 0, 1, 1]
    assert conversation.logprobs == [-0.25, -0.5, 0.0, 0.0, -0.25, -0.5]
    # The second turn was asked for what was left of the whole: twelve, of which four were used.
    assert [one.json["max_tokens"] for one in server.requests] == [5, 5, 5]
    assert engine.room(1) == 6
    # Each turn of each episode has a seed of its own.
    assert len({one.json["seed"] for one in server.requests}) == 3


def test_what_makes_the_server_fail_reaches_the_rollout() -> None:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    dead = CompletionClient("http://127.0.0.1:9", SAMPLING, [2], "vllm.log")
    engine = ServerEngine(
        dead,
        Opening([[5]], ["a/0"], 1, inbox.put),
        "1",
        lambda _: False,
    )
    engine.begin(0)
    error = inbox.get(timeout=200)
    engine.close()
    assert isinstance(error, XpError)
    assert "the vLLM server failed" in str(error)


def test_a_refused_request_is_not_repeated() -> None:
    with http_server(lambda _: Reply({"message": "too long"}, status=400)) as server:
        client = CompletionClient(server.url, SAMPLING, [2], "vllm.log")
        with pytest.raises(XpError, match=r"400.*too long.*its log is vllm.log") as caught:
            client.answer(GenerationRequest([7], 3, 1))
    assert caught.value.code is ExitCode.STAGE_FAILED
    assert len(server.requests) == 1


def test_a_single_process_meets_its_engine_at_a_free_port() -> None:
    ports = set()
    for _ in range(2):
        environ: dict[str, str] = {}
        choose_port(environ)
        ports.add(environ["MASTER_PORT"])
    assert len(ports) == 2
    assert not ports & {
        "29500",
        "23456",
        "12355",
        "12345",
    }  # TRL takes the first of these that is free
    of_torchrun = {"MASTER_PORT": "1234"}
    choose_port(of_torchrun)
    assert of_torchrun == {"MASTER_PORT": "1234"}
