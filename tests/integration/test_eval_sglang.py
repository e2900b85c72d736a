"""SGLang as `xp eval` uses it: the server's arguments, and one turn over HTTP. The real server: make test-sglang."""

from __future__ import annotations

from pathlib import Path

from tests.support.http_server import Reply, http_server
from xp.backends.slime.control.flags import catalog
from xp.composition import compose
from xp.planning.engine_arguments import sglang_arguments
from xp.worker.engines.conversation import GenerationRequest
from xp.worker.engines.sglang import AdapterClient, SGLangClient
from xp.worker.token_budget import evaluation_sampling

NOT_SLIMES = {"--tp-size", "--skip-server-warmup", "--random-seed"}
"""Arguments of SGLang's that Slime's parser names otherwise or keeps for itself."""


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
        written = SGLangClient(
            server.url,
            sampling,
            [2],
            str(tmp_path),
            key="the-key",
        ).answer(request)
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
