"""Pictures on the pages where people see them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.support.fake_session import RULES, FakeSession, call
from tests.support.sections import replace
from xp.envs.base import PICTURE_MARK, Task, ToolResult
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.envs.pictures import PictureStore
from xp.episode.episode import Episode
from xp.episode.trajectory import trajectory
from xp.results.report.episode_detail import detail
from xp.results.report.web import policy
from xp.spec.model import Images

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
    line = trajectory(episode, run="r", phase="train", step=0, sample=0, tools="[]").to_line()
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
