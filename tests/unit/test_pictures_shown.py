"""Pictures where people and models elsewhere see them: pages, and requests to an endpoint."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.fake_session import RULES, FakeSession, call
from tests.support.sections import replace
from xp.envs.base import PICTURE_MARK, Message, Task, ToolResult
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import with_pictures
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus, Reply
from xp.episode.trajectory import trajectory
from xp.results.evaluation.play import Dialogue, ToolCalls
from xp.results.report.episode_detail import detail
from xp.results.report.web import policy
from xp.spec.model import Images
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

PNG = drawn(puzzle("a")[0])
RULES_WITH_PICTURES = replace(RULES, images=Images(max_pixels=10_000, per_episode=4))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def test_a_page_shows_small_pictures_without_a_script_or_the_network(store: PictureStore) -> None:
    shown = store.keep(PNG)
    session = FakeSession(lambda _, __: ToolResult(PICTURE_MARK, pictures=(shown,)))
    episode = Episode(Task("fake", "train", 0), lambda: session, RULES_WITH_PICTURES)
    episode.step(call("move"))
    line = trajectory(
        episode,
        run="r",
        phase="train",
        step=0,
        sample=0,
        tools="[]",
    ).to_line()
    assert b"base64" not in line
    page = detail(json.loads(line), thumbnail=store.thumbnail)
    (message,) = [message for message in page["messages"] if message.get("pictures")]
    assert "[image 56x56 png " in message["content"]
    (uri,) = message["pictures"]
    assert base64.b64decode(uri.removeprefix("data:image/png;base64,"))[1:4] == b"PNG"
    # Without the store they are in words alone.
    lost = PictureStore(store.directory / "no").thumbnail
    for other in (detail(json.loads(line)), detail(json.loads(line), thumbnail=lost)):
        assert not [message for message in other["messages"] if "pictures" in message]
    assert "img-src data:;" in policy(is_live=False)


def test_an_endpoint_gets_pictures_as_data_uris(store: PictureStore) -> None:
    asked = with_pictures(Message(role="user", content=""), [store.keep(PNG), "How many?"])
    about = ("fake", Purpose.TRAIN, "train", 0, "h")
    row = TaskRow("fake/train/0", *about, (asked,), "[]", 1.0)
    dialogue = Dialogue(row, RULES_WITH_PICTURES, ToolCalls.NATIVE, store)
    image, text = dialogue.messages[0]["content"]
    shown = store.keep(picture_data(image))
    assert store.image(shown["sha256"]) == store.image(store.keep(PNG)["sha256"])
    assert text == {"type": "text", "text": "How many?"}
    dialogue.add({"content": "2"}, Reply((asked,), EpisodeStatus.ONGOING))
    assert [part["type"] for part in dialogue.messages[-1]["content"]] == ["image_url", "text"]
