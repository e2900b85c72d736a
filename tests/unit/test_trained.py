"""A training that made no updates, or whose model is its start, is not a success."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.unit.slime_config import worker_config
from xp.errors import ExitCode, XpError
from xp.worker.best import METRIC, RECORD, BestKeeper
from xp.worker.trained import check_trained, have_same_weights

START = {"embed.weight": [0.5, -1.0], "head.weight": [0.25, 3.0]}
MOVED = {**START, "embed.weight": [0.5, -1.25]}
BEST = {"evaluation__keep_best": False, "evaluation__patience": 2}


def leave_model(
    place: Path, weights: dict[str, Any], dtype: str = "float32", *, is_sharded: bool = False
) -> Path:
    """A Hugging Face directory with these weights, in one file or one for each."""
    import torch
    from safetensors.torch import save_file

    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    tensors = {
        name: torch.tensor(values, dtype=getattr(torch, dtype)) for name, values in weights.items()
    }
    for number, part in enumerate(
        [{name: tensors[name]} for name in tensors] if is_sharded else [tensors]
    ):
        save_file(part, place / f"model-{number}.safetensors")
    return place


@pytest.mark.parametrize(
    ("updates", "model", "words"),
    [
        ([0.0, 1.0], MOVED, None),
        ([None, None], MOVED, None),
        ([], MOVED, "ended after 0 of 2 steps"),
        ([1.0], MOVED, "ended after 1 of 2 steps"),
        # Weight decay moves the weights without a gradient.
        ([0.0, 0.0], MOVED, "no update of 2 steps had a gradient"),
        ([None, None], START, "all weights of model are still those of start"),
    ],
)
def test_a_training_without_updates_is_not_a_success(
    updates: list[float | None],
    model: dict[str, Any],
    words: str | None,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    config = worker_config(tmp_path, 1, **BEST)
    Path("runs/r/checkpoints/best").mkdir(parents=True)
    leave_model(tmp_path / "start", START)
    leave_model(tmp_path / "model", model)
    lines = [
        {"stage": "train", "step": step, "training/updates": one}
        for step, one in enumerate(updates, 1)
    ]
    lines.insert(0, {"stage": "train", "step": 0, "sft/held_out_loss": 1.0})
    Path(config.places.metrics).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if words is None:
        check_trained("train", config, 2, "start", "model")
        return
    with pytest.raises(XpError, match=words) as caught:
        check_trained("train", config, 2, "start", "model")
    assert caught.value.code is ExitCode.NOT_TRAINED


@pytest.mark.parametrize(("last", "is_refused"), [(2, True), (3, False)])
def test_an_early_end_is_a_success_if_patience_ended_it(
    last: int, is_refused: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    config = worker_config(tmp_path, 1, **BEST)
    Path("runs/r/checkpoints/best").mkdir(parents=True)
    leave_model(tmp_path / "start", START)
    leave_model(tmp_path / "model", MOVED)
    Path("runs/r/checkpoints/best", RECORD).write_text(json.dumps({"step": 1, "reward": 1.0}))
    lines: list[dict[str, Any]] = []
    for step in range(1, last + 1):
        lines.append({"stage": "evaluate_during", "step": step, METRIC: 0.0})
        lines.append({"stage": "train", "step": step, "training/updates": 1.0})
    Path(config.places.metrics).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    refused = pytest.raises(XpError, match="ended after 2 of 9 steps")
    with refused if is_refused else nullcontext():
        check_trained("train", config, 9, "start", "model", BestKeeper.of(config))


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ((START, "float32"), (START, "float32"), True),
        ((START, "float32"), (MOVED, "float32"), False),
        ((START, "bfloat16"), ({"embed.weight": [0.5, -1.0]}, "bfloat16"), True),
        ((START, "float32"), ({"other": [0.5]}, "float32"), False),
        (({**START, "embed.weight": [0.5, -1.0001]}, "float32"), (START, "bfloat16"), True),
        (({**START, "embed.weight": [0.5, -1.0001]}, "float32"), (START, "float32"), False),
        ((START, "float32"), ({**START, "embed.weight": [0.5]}, "float32"), False),
    ],
)
def test_weights_are_compared_in_the_data_type_of_the_published_model(
    first: Any, second: Any, is_same: bool, tmp_path: Path
) -> None:
    one = leave_model(tmp_path / "one", *first, is_sharded=True)
    assert have_same_weights(one, leave_model(tmp_path / "other", *second)) is is_same
