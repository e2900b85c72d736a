"""The guard against sampled placeholders: a bias in each request to vLLM, but where it guesses tokens, which refuses biases."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("PIL")

from tests.support.http_server import HttpServer, Reply, Request, http_server
from tests.support.sections import run_spec, sampling_of
from tests.support.tiny_vision import vision_model
from xp.backends.trl.worker.generation import Generation
from xp.episode.tokens import ChatTokens
from xp.planning.engine_arguments import evaluation_server
from xp.spec import EngineName
from xp.worker.engines import local
from xp.worker.engines.conversation import OpenEngine, Opening
from xp.worker.media import placeholder_ids

GUESSES = "backend.engine.speculative={method: draft, model: Org/Small, num_tokens: 3}"


def answer(_: Request) -> Reply:
    return Reply({"choices": [{"token_ids": [2], "logprobs": {"token_logprobs": [-0.5]}}]})


def bias(server: HttpServer, open_engine: OpenEngine) -> set[int]:
    """The tokens that the request of a turn forbids."""
    engine = open_engine(Opening([[5, 6]], ["a"], 1, lambda _: None))
    engine.begin(0)
    engine._pool.shutdown(wait=True)  # type: ignore[attr-defined]
    return {int(token) for token in server.requests[-1].json.get("logit_bias", {})}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model("qwen2_vl", tmp_path_factory.mktemp("model"))


def text_chat(model: Path) -> ChatTokens:
    from transformers import AutoTokenizer

    return ChatTokens(AutoTokenizer.from_pretrained(model))


@pytest.mark.parametrize("words", [(), (GUESSES,)], ids=["alone", "a training that guesses"])
def test_the_server_of_an_evaluation_gets_the_biases(
    words: tuple[str, ...], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig

    spec = run_spec(
        *("hardware=h200x8", "model=hf", f"model.path={model}", "backend.engine.name=vllm"), *words
    )
    settings = evaluation_server(spec, EngineName.VLLM)
    assert settings is not None
    assert "--speculative-config" not in settings.arguments
    with http_server(answer) as server:
        running = nullcontext(SimpleNamespace(url=server.url, key="k"))
        monkeypatch.setattr(local.server, "running", lambda *_: running)
        opened = local.local_engine(
            EngineName.VLLM, settings, str(model), text_chat(model), spec, tmp_path
        )
        with opened as open_engine:
            forbidden = bias(server, open_engine)
    assert forbidden == {*placeholder_ids(AutoConfig.from_pretrained(model))} != set()


@pytest.mark.parametrize("guesses", [False, True])
def test_the_server_of_a_training_gets_them_unless_it_guesses(guesses: bool, model: Path) -> None:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model)
    ranks: Any = SimpleNamespace(wait=lambda: None)
    generation = Generation(
        text_chat(model),
        ranks,
        "log",
        is_ahead=False,
        guesses=guesses,
    )
    with http_server(answer) as server:
        vllm = SimpleNamespace(mode="server", server_base_url=server.url, enable_sleep_mode=False)
        trainer = SimpleNamespace(
            args=SimpleNamespace(use_vllm=True),
            vllm_generation=vllm,
            accelerator=SimpleNamespace(unwrap_model=lambda model: model),
            model=SimpleNamespace(config=config),
        )
        with generation.engine(trainer) as engine_of:
            forbidden = bias(server, engine_of(sampling_of(100, 5, 12), "1"))
    assert forbidden == (set() if guesses else {*placeholder_ids(config)})
