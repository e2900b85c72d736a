"""What a checkpoint's own files show before an engine starts: its head, its layers, its quantization."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.lib.models.weights import weight_faults
from xp.planning.refusals import check_model_files
from xp.worker.facts import check_weights

TINY = Path(__file__).parents[2] / "xp/worker/tiny"


def copy_of(directory: Path, keys: dict[str, Any], *, other_head: bool = False) -> Path:
    """The shipped model with other keys in its config.json, and with a head that is not its embedding."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(TINY, directory)
    (directory / "manifest.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | keys))
    if other_head:
        weights = load_file(directory / "model.safetensors")
        weights["lm_head.weight"] = 2 * weights["model.embed_tokens.weight"]
        weights["model.norm.weight"] = weights["model.norm.weight"] / 2
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def faults(place: Path, *, allows_quantized: bool = False) -> list[str]:
    config = json.loads((place / "config.json").read_text())
    return [*weight_faults(place, config, allows_quantized=allows_quantized)]


def test_the_shipped_model_has_no_fault() -> None:
    assert not list(weight_faults(TINY, json.loads((TINY / "config.json").read_text())))


@pytest.mark.parametrize(
    ("keys", "other_head", "words"),
    [
        ({}, True, "tie_word_embeddings is true"),
        ({"num_hidden_layers": 3}, False, "have no layer 2"),
        ({"tie_word_embeddings": False}, False, "have no lm_head.weight"),
        *(
            (
                {"quantization_config": {"quant_method": method}},
                False,
                f"quantization_config, {method}",
            )
            for method in ("fp8", "awq", "gptq", "bitsandbytes")
        ),
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


def test_layers_of_a_part_for_sound_are_none_of_the_text_network(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    place = copy_of(tmp_path / "model", {"num_hidden_layers": 3, "audio_config": {"layers": 3}})
    file = place / "model.safetensors"
    weights = load_file(file)
    weights["audio_tower.layers.2.fc1.weight"] = weights["model.norm.weight"].clone()
    save_file(weights, file, metadata={"format": "pt"})
    assert any("have no layer 2" in fault for fault in faults(place))


def test_an_own_head_is_accepted_without_the_flag(tmp_path: Path) -> None:
    place = copy_of(tmp_path / "model", {"tie_word_embeddings": False}, other_head=True)
    assert faults(place) == []


def test_slime_and_teachers_may_have_quantized_weights(tmp_path: Path) -> None:
    place = copy_of(tmp_path / "model", {"quantization_config": {"quant_method": "fp8"}})
    assert faults(place, allows_quantized=True) == []


def test_a_checkpoint_of_adapters_is_counted_as_adapters() -> None:
    from xp.planning.duration import checkpoint_bytes
    from xp.planning.memory.weights import peft_adapters, weights_of

    lora = "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}"
    whole = compose(["model=qwen3-4b", "hardware=8xH100"])
    spec = compose(["model=qwen3-4b", "hardware=8xH100", lora])
    shape = spec.model.architecture
    assert shape is not None
    adapters = peft_adapters(shape, 8, adapts_experts=True)
    assert checkpoint_bytes(spec)[0] == 12 * adapters
    assert checkpoint_bytes(spec)[0] < 0.01 * checkpoint_bytes(whole)[0]
    assert checkpoint_bytes(spec)[1] == 4 * weights_of(shape).total


@pytest.mark.parametrize("method", ["awq", "compressed-tensors", "gptq", "fp8"])
def test_slime_converts_the_weights_of_fp8_alone(method: str, tmp_path: Path) -> None:
    place = copy_of(tmp_path / "model", {"quantization_config": {"quant_method": method}})
    words = ["backend=slime", "model=hf", f"model.path={place}", "hardware=h100x8"]
    spec = compose(["env=whodunit", "model.dialect=hermes", *words])
    if method == "fp8":
        check_model_files(spec)
        return
    with pytest.raises(XpError, match=f"quantization_config, {method}"):
        check_model_files(spec)


@pytest.mark.parametrize(
    ("keys", "other_head", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, False, "quantization_config, awq"),
        ({}, True, "tie_word_embeddings is true"),
    ],
)
def test_slimes_fine_tuning_looks_at_the_weights_first(
    keys: dict[str, Any],
    other_head: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.support.jobs import PLACES
    from xp.backends.slime.control.render import sft_stage
    from xp.backends.slime.worker.sft import main

    for variable, file in (
        ("SLIME_PATH", "slime/train.py"),
        ("MEGATRON_PATH", "megatron-lm/megatron/training/init.py"),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
        monkeypatch.setenv(variable, str(tmp_path / file.partition("/")[0]))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("sys.path", [*sys.path])
    place = copy_of(tmp_path / "model", keys, other_head=other_head)
    model = ("model=hf", f"model.path={place}", "model.dialect=hermes")
    spec = compose(["env=whodunit", "backend=slime", "hardware=h100x8", *model, "sft.data=solve"])
    stage = sft_stage(spec, PLACES)
    (config,) = (text for name, text in stage.job.files.items() if name.endswith("config.json"))
    (tmp_path / "sft").mkdir()
    (tmp_path / "sft/config.json").write_text(config)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(XpError, match=words) as caught:
        main(["sft/config.json"])
    assert caught.value.code is ExitCode.PLAN
