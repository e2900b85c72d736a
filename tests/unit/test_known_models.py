"""Common models are planned without a hub: the table's networks have the published number of parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.tables import rows
from xp.__main__ import main
from xp.composition import compose
from xp.lib.models.files import known_config
from xp.lib.models.network import network_of
from xp.planning.memory.weights import weights_of
from xp.spec import Architecture


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize(("name", "billions"), rows("model_sizes", ""))
def test_a_known_network_has_the_parameters_of_its_card(name: str, billions: list[str]) -> None:
    config = known_config(name)
    assert config is not None
    network = network_of(config)
    assert network is not None
    assert weights_of(Architecture(**network)).total / 1e9 == pytest.approx(
        float(billions[0]), rel=0.02
    )


def test_a_common_model_is_planned_without_a_hub(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=hf", "model.path=Qwen/Qwen3-1.7B", "backend=skyrl", "hardware=8xb200"]
    assert main(["plan", *words, "env=sums"]) == 0
    out = capsys.readouterr().out
    for part in ("memory per accelerator", "time of a step", "disk: up to"):
        assert part in out


def test_variants_are_compared_in_lines_of_80_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["model=qwen3-4b", "env=sums", "hardware=h100x8", "training.num_steps=100"]
    axes = ["--compare", "backend=trl,slime", "--compare", "training.group_size=7,8"]
    assert main(["plan", *words, *axes]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["variant", "fits", "GiB", "s/step", "hours", "USD"]
    assert lines[0].startswith("backend=trl group_size=7\trefused")
    assert any(line.startswith("backend=trl group_size=7: ") for line in lines)


def test_a_plan_says_which_secret_has_no_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MINE", raising=False)
    words = ["plan", "env.secrets={MINE: null}"]
    assert main(words) == 0
    assert "secret MINE: from the variable MINE, which has no value here" in capsys.readouterr().out
    monkeypatch.setenv("MINE", "a value")
    assert main(words) == 0
    assert "secret MINE: from the variable MINE\n" in capsys.readouterr().out


def test_a_directory_with_config_json_alone_is_planned_anywhere_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {**(known_config("Qwen/Qwen3-8B") or {}), "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [
        "model=hf",
        f"model.path={tmp_path}",
        "backend=skyrl",
        "hardware=h100x8",
        f"outputs={tmp_path}/out",
    ]
    assert compose(words).model.architecture is not None
    assert main(["plan", *words]) == 0
    assert "this plan cannot run yet: model.path=" in capsys.readouterr().out
    assert main(["run", *words]) == 2
    assert (
        "has no weights (*.safetensors); give a whole Hugging Face directory"
        in capsys.readouterr().err
    )


def test_a_network_of_mixed_layers_is_planned_without_an_estimate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its 31.6 B parameters would be 102 B of a plain decoder, which no machine of this size holds."""
    path = "model.path=nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    layout = "backend.parallel={strategy: megatron, tensor: 4, expert: 8}"
    words = ["model=hf", path, "backend=skyrl", "hardware=8xH100", "env=sums", layout]
    assert main(["plan", *words, "backend.engine.tensor_parallel=4"]) == 0
    out = capsys.readouterr().out
    assert "memory: not estimated: xp does not count the layers of nemotron_h" in out
    assert "102" not in out
