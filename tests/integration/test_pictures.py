"""Pictures in conversations and task sets: their tokens, the pixels of the engine and those of the model's own forward pass."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.fake_session import RULES, FakeSession, call
from tests.support.scripts import ROW
from tests.support.sections import replace
from tests.support.tiny_vision import FAMILIES, IMAGES, message, picture, seeing_chat, vision_model
from xp.__main__ import main
from xp.envs.base import PICTURE_MARK, Message, Picture, Task, ToolResult
from xp.envs.builtin.shapes_mini import ShapesMini, drawn, puzzle
from xp.envs.pictures import PictureStore, digests_of, picture_data
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import TooManyPictures
from xp.errors import XpError
from xp.spec.env import PromptSource
from xp.spec.model import Images
from xp.tasks.load import within_limit
from xp.tasks.row import read_rows
from xp.worker.played import live_prompt
from xp.worker.token_budget import reply_ids


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def test_a_template_that_drops_pictures_of_tools_gets_them_behind_the_result(
    model: Path, store: PictureStore
) -> None:
    chat = seeing_chat(model, store)
    chat.tokenizer.chat_template = DROPPING
    shown = picture(store, "a")
    result = {**message("tool", "Closer: ", shown), "name": "look", "tool_call_id": "call00000"}
    text = chat.tokenizer.decode(chat.reply([result], last_id=None))
    assert "Closer: [image 1, below]" in text
    assert text.count("<|image_pad|>") == chat.pictures.num_tokens(shown["sha256"])  # type: ignore[union-attr]
    assert text.index("below]") < text.index("<|image_pad|>")


class ShowsTwo(FakeSession):
    """Begins with a picture, twice."""

    def __init__(self, shown: Picture) -> None:
        super().__init__(lambda *_: ToolResult(""))
        self._shown = shown

    def prompt(self) -> list[Message]:
        return [message("user", self._shown, self._shown)]


def test_pictures_are_bounded_in_pixels_and_by_episode(model: Path, store: PictureStore) -> None:
    chat = seeing_chat(model, store, Images(max_pixels=28 * 28 * 4, per_episode=1))
    shown = picture(store, "a")
    assert chat.pictures is not None
    assert chat.pictures.num_tokens(shown["sha256"]) == 4
    two = message("user", shown, shown)
    reason = "the prompt has 2 images, more than model.images.per_episode=1; set model.images.per_episode to a larger number"
    with pytest.raises(TooManyPictures) as caught:
        chat.prompt([two], "[]")
    assert str(caught.value) == reason
    task = replace(ROW, messages=(two,))
    with pytest.raises(XpError) as refused:
        within_limit(store.directory.parent, [task], chat, 400)
    assert str(refused.value) == f"task {task.task_id}: {reason}"
    # The prompt of a session is known when it is open.
    rules = replace(RULES, prompt=PromptSource.LIVE, images=IMAGES)
    episode = Episode(Task("fake", "train", 0), lambda: ShowsTwo(shown), rules, prepared=[two])
    assert live_prompt(episode, "[]", chat, 400) is None
    outcome = episode.settle()
    assert outcome.status is EpisodeStatus.VOID
    assert outcome.void_reason == f"TooManyPictures: {reason}"
    larger = seeing_chat(model, store, IMAGES)
    assert larger.pictures is not None
    assert larger.digest() != chat.digest()


def test_a_picture_without_room_becomes_a_text_before_the_engine_is_asked(
    model: Path, store: PictureStore
) -> None:
    from PIL import Image

    chat = seeing_chat(model, store)
    large = store.keep(picture_data(Image.new("RGB", (420, 280), "red")))
    assert chat.pictures is not None
    assert 50 < chat.pictures.num_tokens(large["sha256"]) <= 64
    session = FakeSession(lambda _, __: ToolResult(PICTURE_MARK, pictures=(large,)))
    episode = Episode(Task("fake", "train", 0), lambda: session, replace(RULES, images=IMAGES))
    reply = episode.step(call("move"))
    fitting = reply_ids(chat, episode, reply, 66, chat.end_id)
    assert fitting is not None
    assert "[image left out: no room]" in chat.tokenizer.decode(fitting.ids)
    assert digests_of(fitting.messages) == []
    assert episode.settle().pictures == {"read": 0.0, "left_out": 1.0}
    whole = Episode(Task("fake", "train", 0), lambda: session, replace(RULES, images=IMAGES))
    shown = reply_ids(chat, whole, whole.step(call("move")), 400, chat.end_id)
    assert shown is not None
    assert digests_of(shown.messages) == [large["sha256"]]


def test_pictures_of_a_file_of_rows_are_beside_it_and_a_wrong_one_leaves_its_row_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown").mkdir()
    rows = []
    for number in range(8):
        (tmp_path / f"shown/{number}.png").write_bytes(drawn(puzzle(str(number))[0]))
        rows.append({"prompt": f"{number}?", "image": f"shown/{number}.png", "answer": "1"})
    rows.append({"prompt": "outside?", "image": "../../etc/passwd", "answer": "1"})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("env=graded", "env.rows=./rows.jsonl", "env.grader=number", "env.held_out=null")
    lenient = ("model=tiny_vlm", "preparation.allow_missing_fraction=0.2")
    assert main(["prepare", *words, *lenient, f"outputs={tmp_path / 'outputs'}"]) == 0
    (task_set,) = (tmp_path / "outputs/tasks").glob("*/manifest.json")
    assert "outside the folder of the rows" in task_set.read_text()
    prepared = list(read_rows(task_set.with_name("tasks.parquet")))
    assert len(prepared) == 8
    store = PictureStore(tmp_path / "outputs/pictures")
    for row in prepared:
        (digest,) = digests_of(row.messages)
        assert store.data(digest) == (tmp_path / f"shown/{row.index}.png").read_bytes()
    # A set that comes without its pictures is made again.
    shutil.rmtree(tmp_path / "outputs/pictures")
    assert main(["prepare", *words, *lenient, f"outputs={tmp_path / 'outputs'}"]) == 0
    assert all(store.data(digest) for row in prepared for digest in digests_of(row.messages))


DROPPING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif message['role'] != 'tool' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_an_endpoint_sees_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub knows each board by its pixels, which it gets as a data URI."""
    from PIL import Image

    def pixels(data: bytes) -> bytes:
        with Image.open(io.BytesIO(data)) as image:
            return bytes(image.convert("RGB").tobytes())

    monkeypatch.chdir(tmp_path)
    rows = ShapesMini().rows()["test"]
    answers = {(pixels(row["image"]), row["prompt"]): row["answer"] for row in rows}

    def looks(body: Mapping[str, Any]) -> dict[str, Any]:
        image, text = body["messages"][-1]["content"]
        data = image["image_url"]["url"].removeprefix("data:image/png;base64,")
        return {"content": answers[pixels(base64.b64decode(data)), text["text"]]}

    with serving(ChatServer(write=looks)) as server:
        words = ("env=shapes_mini", "model=endpoint", f"model.url={server.url}", "model.name=stub")
        few = ("model.images=true", "evaluation.num_tasks=8", f"outputs={tmp_path / 'outputs'}")
        assert main(["eval", *words, *few]) == 0
    (file,) = (tmp_path / "outputs/evaluations").glob("*/eval.json")
    assert json.loads(file.read_text())["summary"]["reward"]["value"] == 1.0
