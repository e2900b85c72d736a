"""SGLang as `xp eval` uses it: the server's arguments, and one turn over HTTP. The real server: make test-sglang."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from xp.backends.slime.control.flags import catalog
from xp.composition import compose
from xp.engines.conversation import GenerationRequest
from xp.engines.sglang import AdapterWriter, SGLangWriter
from xp.evaluation.local import sglang_arguments
from xp.planning.episode import sampling_of

SIZES = ("backend.engine.tensor_parallel=2", "backend.engine.memory_fraction=0.5", "backend.engine.max_sequences=64")
NOT_SLIMES = {"--tp-size", "--skip-server-warmup", "--random-seed"}
"""Arguments of SGLang's that Slime's parser names otherwise or keeps for itself."""


class Answers(BaseHTTPRequestHandler):
    """Answers /generate with one fixed turn."""

    asked: ClassVar[list[Any]] = []
    answer: ClassVar[Any] = None

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_server_has_the_sizes_of_the_spec() -> None:
    place = ("env=gsm8k", "hardware=a100x4", "model=qwen2.5-3b-instruct")
    words = sglang_arguments(compose([*place, *SIZES]))
    found = dict(pairwise(words))
    assert (found["--tp-size"], found["--dp-size"], found["--mem-fraction-static"]) == ("2", "2", "0.5")
    assert (found["--max-running-requests"], found["--dtype"]) == ("64", "bfloat16")
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
    assert (found["--dp-size"], found["--device"], found["--max-total-tokens"]) == ("1", "cpu", str(32 * 300))
    assert cpu.count("--disable-cuda-graph") == 1
    card = words("hardware=a100x1", "backend.engine.eager=true", "backend.engine.prefix_caching=false")
    assert {"--disable-cuda-graph", "--disable-radix-cache"} <= set(card)
    assert not {"--device", "--max-total-tokens", "--chunked-prefill-size", "--ep-size"} & set(card)
    more = dict(pairwise(words("hardware=a100x1", "backend.engine.max_batched_tokens=999")))
    assert more["--chunked-prefill-size"] == "999"


@pytest.mark.parametrize("hardware", [("hardware=cpu",), ("hardware=a100x1", "backend.engine.eager=true")])
def test_every_argument_is_one_of_the_pinned_sglangs(hardware: tuple[str, ...]) -> None:
    words = sglang_arguments(compose([*hardware, "model=tiny"]))
    named = {word for word in words if word.startswith("--")} - NOT_SLIMES
    assert {name for name in named if f"--sglang-{name[2:]}" not in catalog().flags} == set()


def test_a_turn_is_token_ids_with_the_log_probability_of_each(url: str, tmp_path: Path) -> None:
    sampling = sampling_of(compose(["training.stop=['</s>']", "evaluation.temperature=0.5"]), evaluates=True)
    Answers.answer = {"text": "", "meta_info": {"output_token_logprobs": [[-0.5, 8, None], [-1.25, 2, None]]}}
    writer = SGLangWriter(url, sampling, [2], str(tmp_path), key="the-key")
    written = writer.answer(GenerationRequest([7, 9], 3, 1))
    assert (written.ids, written.logprobs) == ([8, 2], [-0.5, -1.25])
    path, said, body = Answers.asked[-1]
    assert (path, said, body["input_ids"]) == ("/generate", "Bearer the-key", [7, 9])
    given = body["sampling_params"]
    assert (given["temperature"], given["max_new_tokens"], given["stop_token_ids"]) == (0.5, 3, [2])
    assert (given["stop"], given["no_stop_trim"]) == (["</s>"], True)
    AdapterWriter(url, sampling, [2], str(tmp_path)).answer(GenerationRequest([7, 9], 3, 1))
    assert Answers.asked[-1][2] == {**body, "lora_path": "policy"}
