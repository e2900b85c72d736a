"""`env=shapes_look`: its tools return the pictures that they say, and a model's row has all of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openreward")

from xp.composition import compose
from xp.envs.builtin.shapes_mini import CELL, SIDE, drawn, puzzle
from xp.envs.picture_store import VARIABLE, PictureStore
from xp.episode.mixture import EnvironmentMixture
from xp.planning.episode import episode_config, episode_environ
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow


def image(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data)).convert("RGB")


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_its_tools_return_the_board_turned_and_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "outputs/pictures"))
    spec = compose(["env=shapes_look", "model=tiny_vlm", f"outputs={tmp_path}/outputs"])
    store = PictureStore(tmp_path / "outputs/pictures")
    board, *_, count = puzzle("train/0")
    shown = image(drawn(board))
    with EnvironmentMixture(episode_config(spec), episode_environ(spec)) as mix:
        row = TaskRow(
            "shapes_look/train/0", "shapes_look", Purpose.TRAIN, "train", 0, "h", (), "[]", 1.0
        )
        episode = mix.episode(row)
        turned = pictures_in(episode.step(call("turn")), store)
        assert turned == [shown.rotate(-90)]
        cut = pictures_in(episode.step(call("crop", row=1, column=2)), store)
        again = shown.rotate(-90)
        assert cut == [again.crop((CELL, 0, SIDE * CELL, CELL))]
        episode.step(call("answer", number=count))
        outcome = episode.settle()
    assert outcome.reward == 1.0
    assert outcome.pictures == {"read": 3.0, "left_out": 0.0}  # the prompt's too


def pictures_in(reply: Any, store: PictureStore) -> list[Any]:
    return [
        image(store.data(picture["sha256"]))
        for message in reply.messages
        for picture in message.get("pictures", ())
    ]
