"""A model with adapters on a vLLM server: its base, with the adapters under the name of the requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.worker.adapters import adapters_of
from xp.worker.engines.completions import MODEL
from xp.worker.engines.config import VLLMServer
from xp.worker.engines.server import with_adapters

SERVER = VLLMServer(("--dtype", "bfloat16"), 1, 1.0, 1.0)


def adapters_at(directory: Path, rank: int) -> Path:
    directory.mkdir(parents=True)
    config = {"base_model_name_or_path": "ORG/NAME", "r": rank}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("place", "rank", "largest"), [("checkpoint-2", 8, "8"), ("model/adapter", 12, "16")]
)
def test_vllm_serves_the_base_with_the_adapters_apart(
    place: str, rank: int, largest: str, tmp_path: Path
) -> None:
    adapters = adapters_at(tmp_path / place, rank)
    directory = str(tmp_path / place.partition("/")[0])
    assert adapters_of(directory) == adapters
    server, model, name = with_adapters(SERVER, directory)
    words = ["--enable-lora", "--max-lora-rank", largest, "--lora-modules", f"{MODEL}={adapters}"]
    assert [*server.arguments] == ["--dtype", "bfloat16", *words]
    assert model == "ORG/NAME"
    assert name != MODEL  # vLLM would take the base for the adapters


def test_a_whole_model_is_served_as_it_is(tmp_path: Path) -> None:
    assert with_adapters(SERVER, str(tmp_path)) == (SERVER, str(tmp_path), MODEL)
