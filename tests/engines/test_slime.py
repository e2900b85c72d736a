"""Slime's real rollout and router on SGLang's real server, with weights from disk (make test-sglang)."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.test_agreement import NO_RETRY, ROW, FakeMix
from tests.tiny import tokenizer_and_model
from tests.trainers.slime_play import Kept, play_group
from tests.trainers.slime_setup import (
    group_of,
    needs_slime,
    put_worker,
    slime_arguments,
    tiny_directory,
    worker_config,
)
from xp.security.loopback import HOST, free_port

needs_server = pytest.mark.skipif(find_spec("xgrammar") is None, reason="SGLang's server is not here: make test-sglang")
pytestmark = [needs_slime, needs_server, pytest.mark.slow, pytest.mark.timeout(1800)]

GROUP = 4
BAR = 1e-4
"""Largest mean gap between the engine's log-probabilities and those of the weights on disk."""
ARGUMENTS = (
    *("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph", "--skip-server-warmup", "--max-total-tokens", "20000"),
    *("--mem-fraction-static", "0.1", "--host", HOST),
)
ENVIRON = {"SGLANG_USE_CPU_ENGINE": "1", "SLIME_HOST_IP": HOST}


@dataclass(frozen=True)
class Engine:
    """A server that answers."""

    port: int


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    root = tmp_path_factory.mktemp("sglang")
    port, log = free_port(), root / "log.txt"
    command = ["-m", "tests.engines.sglang_server", "--model-path", str(tiny_directory(root)), "--port", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *command, *ARGUMENTS],
            # Its own choice of a second port is the first one plus 10,000, which may be none.
            env=os.environ | ENVIRON | {"SGLANG_GRPC_PORT": str(free_port())},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not answers(port):
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(1)
        yield Engine(port)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=5) as response:
        return bool(response.status == 200)
    return False


def other_weights(version: int) -> Any:
    """The tiny model after an update that was made up."""
    import torch

    model = copy.deepcopy(tokenizer_and_model()[1])
    generator = torch.Generator().manual_seed(version)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def gap(model: Any, samples: list[Any]) -> float:
    """Mean difference of the engine's log-probabilities of the policy's tokens from this model's."""
    import torch

    found: list[float] = []
    for sample in samples:
        with torch.inference_mode():
            logits = model(torch.tensor([sample.tokens])).logits[0, :-1]
        of_model = logits.log_softmax(-1).gather(1, torch.tensor(sample.tokens[1:])[:, None])[:, 0]
        own = of_model[-sample.response_length :].tolist()
        found += [
            abs(mine - engines)
            for mine, engines, is_policys in zip(own, sample.rollout_log_probs, sample.loss_mask, strict=True)
            if is_policys
        ]
    return sum(found) / len(found)


def rollout(args: Any, root: Path) -> list[Any]:
    """A group of episodes by Slime's own function, over its router."""
    put_worker(args, worker_config(root), FakeMix(NO_RETRY), Kept())
    return play_group(args, group_of(ROW, GROUP))


def test_slimes_rollout_has_the_weights_that_slimes_engine_took_from_disk(engine: Engine, tmp_path: Path) -> None:
    from slime.backends.sglang_utils.sglang_engine import SGLangEngine
    from slime.ray.rollout import _start_router
    from slime.utils.http_utils import init_http_client

    args = slime_arguments(tiny_directory(tmp_path))
    args.sglang_router_ip, args.sglang_router_port = _start_router(args)
    init_http_client(args)
    server = SGLangEngine(args, rank=0, worker_type="regular", base_gpu_id=0)
    server.node_rank, server.server_host, server.server_port = 0, HOST, engine.port
    server.router_ip, server.router_port = args.sglang_router_ip, args.sglang_router_port
    server._register_to_router({})
    assert gap(tokenizer_and_model()[1], rollout(args, tmp_path)) < BAR
    for version in (1, 2):
        directory = tmp_path / f"weight_v{version:06d}"
        for made in (other_weights(version), tokenizer_and_model()[0]):
            made.save_pretrained(directory)
        # Weights are sent as Slime's training loop sends them, between two rollouts.
        server.pause_generation()
        server.flush_cache()
        server.update_weights_from_disk(str(directory), weight_version=str(version))
        server.continue_generation()
        samples = rollout(args, tmp_path)
        own, before = gap(other_weights(version), samples), gap(other_weights(version - 1), samples)
        print(f"update {version}: {own:.1e} from its weights, {before:.1e} from others")
        assert own < BAR < before
