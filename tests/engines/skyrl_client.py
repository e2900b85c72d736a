"""SkyRL's own router, client and weight sender against one of its servers, for tests/engines/test_skyrl_servers.py.

python -m tests.engines.skyrl_client MODEL_DIR SERVER_URL DIRECTORY
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from xp.backends.skyrl.worker.rehearsal import cpu_torch
from xp.lib.loopback import HOST, free_port

LENGTH = 20
TURNS = 4


async def gap(client: Any, model: Any, prompt: list[int]) -> float:
    """Mean difference of the server's log-probabilities of what it writes from the model's."""
    sampling = {
        "max_tokens": LENGTH,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "logprobs": 1,
        "ignore_eos": True,
    }
    asked = {
        "prompt_token_ids": [prompt] * TURNS,
        "session_ids": [str(number) for number in range(TURNS)],
        "sampling_params": sampling,
    }
    answer = await client.generate(asked)
    found: list[float] = []
    for ids, own in zip(answer["response_ids"], answer["response_logprobs"], strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, :-1]
        models = logits.log_softmax(-1).gather(1, torch.tensor([*prompt, *ids])[1:, None])[
            -len(ids) :, 0
        ]
        found += [abs(one - other) for one, other in zip(own, models.tolist(), strict=True)]
    return sum(found) / len(found)


async def updates(client: Any, model: Any, prompt: list[int]) -> dict[str, list[float]]:
    """The gap before the first transfer, and of two updates before and after theirs."""
    from xp.backends.skyrl.worker.rehearsal.weights import gloo_engine

    found: dict[str, list[float]] = {"sent": [await gap(client, model, prompt)], "stale": []}
    world_size, _ = await client.get_world_size()
    weights = list(model.named_parameters())
    sender = await asyncio.to_thread(
        gloo_engine,
        ie_cfg=SimpleNamespace(model_dtype="float32"),
        source_factory=lambda *_: weights,
        server_urls=client.server_urls,
        data_parallel_size=client.data_parallel_size,
        inference_world_size=world_size,
    )
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        found["stale"].append(await gap(client, model, prompt))
        await client.pause_generation()
        await asyncio.to_thread(sender.send_weights)
        await client.reset_prefix_cache()
        await client.resume_generation()
        found["sent"].append(await gap(client, model, prompt))
    await client.aclose()
    return found


def main(directory: str, url: str, place: str) -> None:
    """Print the gaps as JSON."""
    os.environ[cpu_torch.REAL_ENGINE] = "vllm"
    cpu_torch.prepare_process()
    import torch.distributed as dist
    from skyrl.backends.skyrl_train.inference_servers import vllm_router
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import (
        RemoteInferenceClient,
    )
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from vllm_router.router_args import RouterArgs

    vllm_router.get_node_ip = lambda: HOST  # Ray's, which is not here
    arguments = RouterArgs(
        host=HOST,
        prometheus_host=HOST,
        port=free_port(),
        policy="consistent_hash",
        worker_urls=[url],
    )
    router = vllm_router.VLLMRouter(arguments, log_path=place)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    dist.init_process_group(
        backend="gloo", init_method=f"file://{Path(place).absolute()}/store", rank=0, world_size=1
    )
    try:
        client = RemoteInferenceClient(
            proxy_url=router.start(),
            server_urls=[url],
            model_name=directory,
            tokenizer=tokenizer,
            data_parallel_size=1,
        )
        found = asyncio.run(updates(client, model, tokenizer("Where is the key?")["input_ids"]))
    finally:
        router.shutdown()
    print("RESULT", json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
