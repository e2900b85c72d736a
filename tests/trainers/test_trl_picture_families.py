"""Trainings of further families that read pictures on TRL: log-probabilities of its update, and a trained vision part."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tests.support.picture_families import FAMILIES, picture_model
from tests.support.stages_here import stages_here as stages_here
from tests.support.tiny_vision import vision_model
from xp.__main__ import main
from xp.envs.builtin.shapes_mini import drawn, puzzle

SMALL = (
    *("env=graded", "env.grader=tests.graders_under_test.showing:TwoBoards"),
    *("env.held_out.split=test", "env.max_turns=2", "hardware=cpu", "model=hf"),
    *("model.dtype=float32", "model.images=true", "model.tools_prompt=system"),
    *("training.num_steps=2", "training.prompts_per_step=3", "training.group_size=4"),
    *("training.micro_batch_size=4", "training.learning_rate=1e-3"),
    *("training.max_tokens_per_turn=4", "training.max_response_tokens=200"),
    *("training.max_prompt_tokens=400", "training.checkpoint_every=1"),
)


def train(model: Path, directory: Path, *words: str) -> tuple[Path, list[dict[str, Any]]]:
    """Two steps of a training; returns the run's directory and its lines of metrics."""
    outputs = directory / "outputs"
    assert main([*SMALL, f"model.path={model}", f"outputs={outputs}", *words]) == 0
    (run,) = (outputs / "runs").iterdir()
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return run, [line for line in lines if line["stage"] == "train"]


def changed(start: Path, run: Path) -> set[str]:
    """Names of the weights that a training changed."""
    from safetensors.torch import load_file

    before, after = (load_file(place / "model.safetensors") for place in (start, run / "model"))
    assert before.keys() == after.keys()
    return {name for name in before if not before[name].equal(after[name])}


@pytest.mark.usefixtures("stages_here")
@pytest.mark.slow  # tests/trainers/test_trl_pictures.py trains one family in `make test`
@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"smolvlm"}))
def test_the_updates_log_probabilities_are_the_engines_with_a_picture_in_each_turn(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts have 0, 1 and 2 pictures, so that rows of a micro-batch have 1, 2 and 3."""
    for package in FAMILIES[family].needs:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    model = picture_model(family, tmp_path / "model")
    run, steps = train(model, tmp_path)
    assert len(steps) == 2
    for step in steps:
        assert step["episodes/void"] == 0.0
        assert step["environment/turns"] == 2.0
        assert step["training/logprob_gap"] < 1e-5
        assert 1.0 < step["pictures/read"] <= 3.0
        assert math.isfinite(step["training/grad_norm"])
    names = changed(model, run)
    assert names
    assert all("language_model" in name or "text_model" in name for name in names)
    assert (run / "model/preprocessor_config.json").is_file()


@pytest.mark.usefixtures("stages_here")
@pytest.mark.slow  # tests/trainers/test_trl_sft_pictures.py has the gradient of a trained vision part
@pytest.mark.parametrize("family", ["qwen2_vl", "gemma3"])
def test_a_trained_vision_part_is_published(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if family == "gemma3":
        model = picture_model(family, tmp_path / "model")
    else:
        model = vision_model(family, tmp_path / "model", spread=0.08)
    run, steps = train(model, tmp_path, "model.train_vision=true")
    names = changed(model, run)
    of_vision = {name for name in names if "visual" in name or "vision_tower" in name}
    assert of_vision
    assert names - of_vision
    assert all(step["training/logprob_gap"] < 1e-5 for step in steps)
    assert (run / "model/preprocessor_config.json").is_file()


@pytest.mark.usefixtures("stages_here")
@pytest.mark.slow  # tests/trainers/test_trl_media.py has the layers of adapters without a training
def test_adapters_are_on_the_language_layers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = picture_model("gemma3", tmp_path / "model")
    run, steps = train(
        model,
        tmp_path,
        "model.lora=4",
        "training.learning_rate=1e-2",
    )
    names = changed(model, run)
    assert names
    assert all("language_model" in name for name in names)
    assert all(step["training/logprob_gap"] < 1e-5 for step in steps)


def leave_rows(file: Path) -> None:
    """Writes questions with no, one and two pictures."""
    lines = []
    for number in range(6):
        images = [
            "data:image/png;base64,"
            + base64.b64encode(drawn(puzzle(f"{number}/{part}")[0])).decode()
            for part in range(number % 3)
        ]
        lines.append({"prompt": f"How many, {number}?", "images": images, "answer": "2"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("trains", ["false", "true"])
def test_one_of_two_processes_has_a_picture_and_the_other_one_has_none(
    strategy: str, trains: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = vision_model("qwen2_vl", tmp_path / "model", spread=0.08)
    leave_rows(tmp_path / "rows.jsonl")
    run, steps = train(
        model,
        tmp_path,
        *(f"env.rows={tmp_path}/rows.jsonl", "env.grader=number", "env.held_out=null"),
        *("hardware.accelerators_per_node=2", f"backend.parallel.strategy={strategy}"),
        *("training.prompts_per_step=2", "training.group_size=2", "training.micro_batch_size=1"),
        *(f"model.train_vision={trains}", "training.entropy_coef=0.01"),
    )
    assert [step["episodes/void"] for step in steps] == [0.0, 0.0]
    assert all(step["training/logprob_gap"] < 1e-5 for step in steps)
    assert all(step["training/grad_norm"] > 0 for step in steps)
    names = changed(model, run)
    of_vision = {name for name in names if "visual" in name}
    assert names - of_vision
    assert bool(of_vision) == (trains == "true")
