"""SGLang as `xp eval` uses it: the server's arguments, and one turn over HTTP. The real server: make test-sglang."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.support.http_server import Reply, http_server
from xp.backends.slime.control.flags import catalog
from xp.composition import compose
from xp.planning.engine import sglang_arguments
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.sglang import AdapterClient, SGLangClient
from xp.worker.token_budget import evaluation_sampling

SIZES = (
    "backend.engine.tensor_parallel=2",
    "backend.engine.memory_fraction=0.5",
    "backend.engine.max_sequences=64",
)
NOT_SLIMES = {"--tp-size", "--skip-server-warmup", "--random-seed"}
"""Arguments of SGLang's that Slime's parser names otherwise or keeps for itself."""


def test_the_server_has_the_sizes_of_the_spec() -> None:
    place = ("env=gsm8k", "hardware=a100x4", "model=qwen2.5-3b-instruct")
    words = sglang_arguments(compose([*place, *SIZES]))
    found = dict(pairwise(words))
    assert found["--tp-size"] == "2"
    assert found["--dp-size"] == "2"
    assert found["--mem-fraction-static"] == "0.5"
    assert found["--max-running-requests"] == "64"
    assert found["--dtype"] == "bfloat16"
    assert "--device" not in words


def test_a_server_on_a_cpu_is_one_with_a_cache_of_its_own_size() -> None:
    def words(*more: str) -> tuple[str, ...]:
        sizes = (
            "training.max_prompt_tokens=100",
            "training.max_response_tokens=200",
            "training.max_tokens_per_turn=50",
        )
        return sglang_arguments(compose(["model=tiny", *sizes, *more]))

    cpu = words("hardware=cpu", "hardware.accelerators_per_node=2", "backend.engine.eager=true")
    found = dict(pairwise(cpu))
    assert (found["--dp-size"], found["--device"], found["--max-total-tokens"]) == (
        "1",
        "cpu",
        str(32 * 300),
    )
    assert cpu.count("--disable-cuda-graph") == 1
    card = words(
        "hardware=a100x1", "backend.engine.eager=true", "backend.engine.prefix_caching=false"
    )
    assert {"--disable-cuda-graph", "--disable-radix-cache"} <= set(card)
    assert not {"--device", "--max-total-tokens", "--chunked-prefill-size", "--ep-size"} & set(card)
    more = dict(pairwise(words("hardware=a100x1", "backend.engine.max_batched_tokens=999")))
    assert more["--chunked-prefill-size"] == "999"


def test_every_argument_is_one_of_the_pinned_sglangs() -> None:
    hardware = ("hardware=a100x1", "backend.engine.eager=true")
    words = sglang_arguments(compose([*hardware, "model=tiny"]))
    named = {word for word in words if word.startswith("--")} - NOT_SLIMES
    assert {name for name in named if f"--sglang-{name[2:]}" not in catalog().flags} == set()


def test_a_turn_is_token_ids_with_the_log_probability_of_each(tmp_path: Path) -> None:
    sampling = evaluation_sampling(
        compose(["training.stop=['</s>']", "evaluation.temperature=0.5"])
    )
    turn = {"text": "", "meta_info": {"output_token_logprobs": [[-0.5, 8, None], [-1.25, 2, None]]}}
    with http_server(lambda _: Reply(turn)) as server:
        request = GenerationRequest([7, 9], 3, 1)
        written = SGLangClient(server.url, sampling, [2], str(tmp_path), key="the-key").answer(
            request
        )
        AdapterClient(server.url, sampling, [2], str(tmp_path)).answer(request)
    assert written.ids == [8, 2]
    assert written.logprobs == [-0.5, -1.25]
    whole, adapter = server.requests
    body = whole.json
    assert whole.path == "/generate"
    assert whole.headers["authorization"] == "Bearer the-key"
    assert body["input_ids"] == [7, 9]
    given = body["sampling_params"]
    assert given["temperature"] == 0.5
    assert given["max_new_tokens"] == 3
    assert given["stop_token_ids"] == [2]
    assert (given["stop"], given["no_stop_trim"]) == (["</s>"], True)
    assert adapter.json == {**body, "lora_path": "policy"}
