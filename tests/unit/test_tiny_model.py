"""The tiny model's tokenizer, its loss weights and how it is put in place."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from xp.builtin.model.build import Build
from xp.builtin.model.tiny_model import MANIFEST, TinyModelConfig, _sorted_schemas, main, make_tokenizer, publish
from xp.builtin.model.tokenizer import SPECIAL, chat_template
from xp.builtin.model.warm_up import Warmup, render_demonstration
from xp.builtin.mystery import ALIBIS, ROOMS, SUSPECTS, WEAPONS
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.plan import build_plan

BUILD = {
    "hidden_size": 16,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 16,
    "vocab_size": 768,
    "rope_theta": 10000.0,
    "initializer_range": 0.1,
    "warmup_steps": 3,
    "warmup_batch_size": 2,
    "warmup_ramp_steps": 2,
    "warmup_learning_rate": 0.003,
    "matrix_learning_rate": 0.01,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "choice_weight": 2.0,
    "reply_weight": 0.5,
    "bare_share": 0.5,
    "bare_probability": 1.0,
    "hasty_share": 0.3,
    "sloppy_share": 0.4,
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(Build(seed=0, **BUILD))


def config(directory: Path) -> Path:
    path = directory / "config.json"
    value = {
        "output_dir": str(directory / "model"),
        "seed": 0,
        "max_context_tokens": 512,
        "num_threads": 1,
        "made_from": "",
    }
    path.write_text(json.dumps(value | {"build": BUILD}))
    return path


@pytest.mark.parametrize("word", [*SUSPECTS, *ROOMS, *WEAPONS, *ALIBIS])
def test_every_name_is_one_token(tokenizer: Any, word: str) -> None:
    assert [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (word, f" {word}")] == [1, 1]


def test_no_token_reaches_beyond_a_word_or_a_run_of_punctuation(tokenizer: Any) -> None:
    vocabulary = tokenizer.get_vocab()
    assert set(vocabulary) > set(SPECIAL)
    for token, number in vocabulary.items():
        text = tokenizer.decode([number])
        assert token in SPECIAL or not any(a.isalpha() and not b.isalpha() for a, b in pairwise(text))


def test_the_template_is_the_one_that_trl_knows(tokenizer: Any) -> None:
    from trl.chat_template_utils import supports_tool_calling

    assert tokenizer.chat_template == chat_template()
    assert supports_tool_calling(tokenizer)


def test_the_loss_counts_the_assistants_text_with_its_end(tokenizer: Any) -> None:
    warmup = Warmup(_tiny(tokenizer), tokenizer, Build(seed=0, **BUILD), _sorted_schemas())
    text = render_demonstration(0, Build(seed=0, **BUILD), _sorted_schemas()).removeprefix(warmup._system)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    weights = warmup._weights(ids)
    own = tokenizer.decode([token for token, weight in zip(ids, weights, strict=True) if weight >= 1.0])
    turns = [part.split("<|im_end|>")[0] + "<|im_end|>" for part in text.split("<|im_start|>assistant\n")[1:]]
    assert own == "".join(turns)
    assert weights[0] == 0.0
    assert set(weights) == {0.0, 0.5, 1.0, 2.0}


def test_the_same_build_gives_the_same_bytes_and_the_manifest_names_them(tmp_path: Path) -> None:
    manifests = []
    for name in ("one", "two"):
        directory = tmp_path / name
        directory.mkdir()
        main([str(config(directory))])
        manifests.append(json.loads((directory / "model" / MANIFEST).read_text()))
        assert {path.name for path in directory.iterdir()} == {"config.json", "model"}
    assert manifests[0] == manifests[1]
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(manifests[0]["files"])


MINE = '{"files": {}, "of": "mine"}'


@pytest.mark.scorecard(52)
def test_a_finished_model_is_left_alone_and_a_torn_one_is_replaced(tmp_path: Path) -> None:
    mine, target = tmp_path / "mine", tmp_path / "target"
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
    (target / MANIFEST).write_text('{"files": {"model.safetensors": "0"}}')  # damaged: it is not there at all
    publish(late, target)
    assert (target / MANIFEST).read_text() == '{"files": {}}'


def _tiny(tokenizer: Any) -> Any:
    from xp.builtin.model.tiny_model import make_model

    return make_model(TinyModelConfig(Path("unused"), 512, 1, "", Build(seed=0, **BUILD)), tokenizer)


def test_unknown_or_excessive_shares_of_players_are_refused() -> None:
    for players, message in (
        ("{hasty: 0.3, lazy: 0.1}", r"model\.build\.players: no player is called lazy; there are hasty, sloppy"),
        ("{hasty: 0.6, sloppy: 0.5}", r"must not exceed 1 together; got 1\.1"),
    ):
        with pytest.raises(XpError, match=message) as error:
            build_plan(compose([f"model.build.players={players}"]), "r")
        assert error.value.code is ExitCode.CONFIG
