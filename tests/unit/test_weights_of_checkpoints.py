"""What a checkpoint's own files show before an engine starts: its head, its layers, its quantization."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.lib.models.weights import weight_faults
from xp.planning.refusals import check_model_files
from xp.worker.facts import check_weights
from xp.worker.tiny_model import SHIPPED


def copy_of(directory: Path, keys: dict[str, Any], *, other_head: bool = False) -> Path:
    """The shipped model with other keys in its config.json, and with a head that is not its embedding."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(SHIPPED, directory)
    (directory / "manifest.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | keys))
    if other_head:
        weights = load_file(directory / "model.safetensors")
        weights["lm_head.weight"] = 2 * weights["model.embed_tokens.weight"]
        weights["model.norm.weight"] = weights["model.norm.weight"] / 2
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    ("keys", "other_head", "words"),
    [
        ({}, True, "tie_word_embeddings is true"),
        ({"num_hidden_layers": 3}, False, "have no layer 2"),
        ({"tie_word_embeddings": False}, False, "have no lm_head.weight"),
    ],
)
def test_plan_and_training_refuse_a_checkpoint_that_its_config_does_not_describe(
    keys: dict[str, Any], other_head: bool, words: str, tmp_path: Path
) -> None:
    place = copy_of(tmp_path / "model", keys, other_head=other_head)
    spec = compose(["model=hf", f"model.path={place}"])
    for check in (lambda: check_model_files(spec), lambda: check_weights(place)):
        with pytest.raises(XpError, match=words) as caught:
            check()
        assert caught.value.code == ExitCode.PLAN


def test_an_own_head_is_accepted_without_the_flag(tmp_path: Path) -> None:
    keys = {"tie_word_embeddings": False}
    place = copy_of(tmp_path / "model", keys, other_head=True)
    assert not list(weight_faults(place, json.loads((place / "config.json").read_text())))
