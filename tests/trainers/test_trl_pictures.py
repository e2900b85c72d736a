"""Trainings with pictures on TRL: the pixels of the update are those of the engine, and records have digests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from tests.support.tiny_vision import FAMILIES, vision_model
from xp.__main__ import main
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.envs.pictures import PictureStore

SMALL = (
    "hardware=cpu",
    "training.num_steps=2",
    "training.prompts_per_step=3",
    "training.group_size=4",
    "training.micro_batch_size=4",
    "training.learning_rate=1e-3",
    "training.max_tokens_per_turn=4",
    "training.max_response_tokens=60",
    "training.checkpoint_every=1",
)
TWO_TURNS = (
    "env=graded",
    "env.grader=tests.graders_under_test.showing:TwoBoards",
    "env.held_out.split=test",
    "env.max_turns=2",
)


def steps_of(outputs: Path, stage: str = "train") -> list[dict[str, Any]]:
    (run,) = (outputs / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["stage"] == stage]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_updates_log_probabilities_are_the_engines_with_a_picture_in_each_turn(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts have 0, 1 and 2 pictures, so that rows of a micro-batch have 1, 2 and 3."""
    monkeypatch.chdir(tmp_path)
    model = vision_model(family, tmp_path / "model", spread=0.08)
    outputs = tmp_path / "outputs"
    words = (
        *TWO_TURNS,
        *SMALL,
        "model=hf",
        f"model.path={model}",
        "model.dtype=float32",
        "model.images=true",
    )
    assert main([*words, f"outputs={outputs}"]) == 0
    steps = steps_of(outputs)
    assert len(steps) == 2
    for step in steps:
        assert step["episodes/void"] == 0.0
        assert step["environment/turns"] == 2.0
        assert step["training/logprob_gap"] < 1e-5
        assert step["pictures/read"] == 2.0
        assert step["pictures/left_out"] == 0.0
        assert math.isfinite(step["training/grad_norm"])
    (run,) = (outputs / "runs").iterdir()
    check_records(run, outputs)
    check_published(run / "model", model)


def check_records(run: Path, outputs: Path) -> None:
    """No record has bytes of a picture; the store has each picture of a record once."""
    store = PictureStore(outputs / "pictures")
    used = set()
    for file in run.rglob("*.jsonl"):
        for line in file.read_text().splitlines():
            assert "base64" not in line
            for message in json.loads(line).get("messages", ()):
                used |= {picture["sha256"] for picture in message.get("pictures", ())}
    assert len(used) > 3
    for digest in used:
        assert store.data(digest)


def check_published(published: Path, start: Path) -> None:
    """The vision part is the start's byte for byte, and the processor is there."""
    from safetensors.torch import load_file

    before, after = (load_file(place / "model.safetensors") for place in (start, published))
    vision = [name for name in before if "visual" in name]
    assert vision
    assert all(before[name].equal(after[name]) for name in vision)
    assert any(not before[name].equal(after[name]) for name in set(before) - set(vision))
    assert (published / "preprocessor_config.json").is_file()


def test_pictures_of_rows_of_a_file_are_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row whose picture cannot be read is left out, with its reason."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    rows = []
    for number in range(8):
        (tmp_path / f"pictures/{number}.png").write_bytes(drawn(puzzle(str(number))[0]))
        rows.append({"prompt": f"{number}?", "image": f"pictures/{number}.png", "answer": "1"})
    rows.append({"prompt": "outside?", "image": "../../etc/passwd", "answer": "1"})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("env=graded", "env.rows=./rows.jsonl", "env.grader=number", "env.held_out=null")
    lenient = "preparation.allow_missing_fraction=0.2"
    few = ("model=tiny_vlm", "training.prompts_per_step=2")
    assert main([*words, *SMALL, *few, lenient, f"outputs={tmp_path / 'outputs'}"]) == 0
    assert "outside the folder of the rows" in capsys.readouterr().out
    assert [step["pictures/read"] for step in steps_of(tmp_path / "outputs")] == [1.0, 1.0]


def test_a_picture_without_room_becomes_a_text_before_the_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outputs = tmp_path / "outputs"
    # The second board has some 16 tokens with its text; the sentence about it is longer than what is left.
    small = "training.max_response_tokens=34"
    words = [*TWO_TURNS, *SMALL, "model=tiny_vlm", small]
    assert main([*words, f"outputs={outputs}"]) == 0
    steps = steps_of(outputs)
    assert sum(step["pictures/left_out"] for step in steps) > 0
    assert all(step["episodes/void"] == 0.0 for step in steps)
