"""The model that xp ships: its network, its place, and what its maker does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tools.tiny_model.__main__ import build_model, make_model, make_tokenizer, ship, sorted_schemas
from tools.tiny_model.build import Build
from tools.tiny_model.tokenizer import SPECIAL, chat_template
from tools.tiny_model.warm_up import Warmup, render_demonstration
from xp.composition import compose
from xp.envs.builtin.mystery import ALIBIS, ROOMS, SUSPECTS, WEAPONS
from xp.lib.digest import file_digest
from xp.lib.models.network import mismatches
from xp.lib.verified import damaged
from xp.worker.tiny_model import (
    MANIFEST,
    PLACE,
    SHIPPED,
    VISION_PLACE,
    VISION_SHIPPED,
    publish,
)

BUILD = Build(
    hidden_size=16,
    num_layers=1,
    head_dim=8,
    intermediate_size=16,
    warmup_steps=3,
    warmup_batch_size=2,
    warmup_ramp_steps=2,
    bare_share=0.5,
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(BUILD)


@pytest.mark.parametrize("word", [*SUSPECTS, *ROOMS, *WEAPONS, *ALIBIS])
def test_every_name_is_one_token(tokenizer: Any, word: str) -> None:
    assert [
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (word, f" {word}")
    ] == [1, 1]


def test_no_token_reaches_beyond_a_word_or_a_run_of_punctuation(tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    assert set(vocabulary) > set(SPECIAL)
    for token, number in vocabulary.items():
        text = tokenizer.decode([number])
        assert token in SPECIAL or not any(
            a.isalpha() and not b.isalpha() for a, b in pairwise(text)
        )


def test_the_template_is_the_one_that_trl_knows(tokenizer: Any) -> None:
    from trl.chat_template_utils import supports_tool_calling

    assert tokenizer.chat_template == chat_template()
    assert supports_tool_calling(tokenizer)


def test_the_loss_counts_the_assistants_text_with_its_end(tokenizer: Any) -> None:
    warmup = Warmup(_tiny(tokenizer), tokenizer, BUILD, sorted_schemas())
    text = render_demonstration(0, BUILD, sorted_schemas()).removeprefix(warmup._system)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    weights = warmup._weights(ids)
    own = tokenizer.decode(
        [token for token, weight in zip(ids, weights, strict=True) if weight >= 1.0]
    )
    turns = [
        part.split("<|im_end|>")[0] + "<|im_end|>"
        for part in text.split("<|im_start|>assistant\n")[1:]
    ]
    assert own == "".join(turns)
    assert weights[0] == 0.0
    assert set(weights) == {0.0, 0.5, 1.0, 2.0}


def test_the_same_build_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        build_model(BUILD, 512, 1, tmp_path / name)
        digests.append({file.name: file_digest(file) for file in (tmp_path / name).iterdir()})
    assert digests[0] == digests[1]
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(
        digests[0]
    )


def test_the_option_describes_the_shipped_model() -> None:
    model = compose([]).model
    assert model.architecture is not None
    config = json.loads((SHIPPED / "config.json").read_text())
    assert mismatches(model.architecture.model_dump(), config) == []
    assert model.max_context_tokens == config["max_position_embeddings"]
    assert model.path == PLACE == f"models/tiny-{file_digest(SHIPPED / 'model.safetensors')[:12]}"
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 3_000_000


def test_the_option_of_the_model_that_reads_pictures_describes_it() -> None:
    model = compose(["model=tiny_vlm"]).model
    assert model.architecture is not None
    config = json.loads((VISION_SHIPPED / "config.json").read_text())
    assert mismatches(model.architecture.model_dump(), config) == []
    weights = file_digest(VISION_SHIPPED / "model.safetensors")
    assert model.path == VISION_PLACE == f"models/tiny-vlm-{weights[:12]}"
    assert damaged(VISION_SHIPPED / MANIFEST) is None
    assert sum(file.stat().st_size for file in VISION_SHIPPED.iterdir()) < 2_000_000


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_shipped_model_is_what_its_command_makes(tmp_path: Path) -> None:
    """Files other than the weights are equal byte for byte; weights depend on the machine's arithmetic."""
    loss = ship(tmp_path / "again")
    made, shipped = (
        json.loads((place / MANIFEST).read_text()) for place in (tmp_path / "again", SHIPPED)
    )
    assert made["build"] == shipped["build"]
    assert {n: d for n, d in made["files"].items() if n != "model.safetensors"} == {
        n: d for n, d in shipped["files"].items() if n != "model.safetensors"
    }
    assert abs(loss - shipped["warmup_loss"]) < 0.02


MINE = '{"files": {}, "of": "mine"}'


def test_a_finished_model_is_left_alone_and_a_torn_one_is_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    target = tmp_path / "target"
    mine.mkdir()
    (mine / MANIFEST).write_text(MINE)
    target.mkdir()
    (target / "model.safetensors").write_text("torn")
    publish(mine, target)
    assert (target / MANIFEST).read_text() == MINE
    late = tmp_path / "late"
    late.mkdir()
    (late / MANIFEST).write_text('{"files": {}}')
    publish(late, target)
    assert (target / MANIFEST).read_text() == MINE
    (target / MANIFEST).write_text(
        '{"files": {"model.safetensors": "0"}}'
    )  # damaged: it is not there at all
    publish(late, target)
    assert (target / MANIFEST).read_text() == '{"files": {}}'


def _tiny(tokenizer: Any) -> Any:
    return make_model(BUILD, 512, tokenizer)
