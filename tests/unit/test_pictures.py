"""Pictures of rows and of environments: where they come from, what is refused, and what messages and stores have."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import RULES, FakeSession, call
from tests.support.sections import replace
from xp.envs import wire
from xp.envs.base import PICTURE_MARK, Message, ProtocolError, Task, ToolResult
from xp.envs.builtin.shapes_mini import NUM_ROWS, ShapesMini, drawn, puzzle
from xp.envs.messages import chat_messages
from xp.envs.openenv import observed
from xp.envs.picture_bytes import PictureFault, picture_data
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of, parts_of, text_of, with_pictures
from xp.envs.rows import messages_of, reader_of
from xp.episode.episode import Episode
from xp.episode.prompt import as_user, opening_messages, prompt_keys
from xp.errors import XpError
from xp.spec.model import Images

PNG = drawn(puzzle("a")[0])
OTHER = drawn(puzzle("b")[0])
URI = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
IMAGES = Images(max_pixels=200_704, per_episode=2)


def pil(data: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(data))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def bomb(side: int) -> bytes:
    """A file of some hundred bytes that claims to be huge."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    chunks = [
        (b"IHDR", header),
        (b"IDAT", zlib.compress(b"\0" * 100)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


FORMS: list[tuple[str, Any]] = [
    ("bytes", PNG),
    ("PIL's picture", pil(PNG)),
    ("a data URI", URI),
    ("datasets' bytes", {"bytes": PNG, "path": None}),
    ("datasets' path", {"bytes": None, "path": "a.png"}),
    ("a path below", "more/../a.png"),
    ("OpenAI's part", {"type": "image_url", "image_url": {"url": URI}}),
    ("the responses' part", {"type": "input_image", "image_url": URI}),
    ("Anthropic's part", {"type": "image", "source": {"type": "base64", "data": URI[22:]}}),
    ("MCP's part", {"type": "image", "data": URI[22:], "mimeType": "image/png"}),
    ("a part with a picture", {"type": "image", "image": PNG}),
]


@pytest.mark.parametrize(("name", "value"), FORMS)
def test_a_picture_is_read_as_people_write_it(
    name: str, value: Any, tmp_path: Path, store: PictureStore
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "more").mkdir()
    kept = store.keep(picture_data(value, [tmp_path]))
    digest = kept["sha256"]
    assert (kept["media_type"], kept["width"], kept["height"]) == ("image/png", 56, 56), name
    assert len(store.data(digest)) == kept["size"]
    assert pil(store.data(digest)).tobytes() == pil(PNG).tobytes()


REFUSED: list[tuple[Any, str]] = [
    (b"no picture at all", "not an image"),
    (PNG[:200], "a damaged image"),
    (bomb(10_000), "more than 50,000,000 pixels"),
    ("https://host/a.png", "xp downloads no images"),
    ("file:///etc/passwd", "xp downloads no images"),
    ("/etc/hostname", "outside the folder"),
    ("link.png", "outside the folder"),
    ("absent.png", "no file absent.png"),
    ("data:image/png;base64,???", "not base64"),
    ({"bytes": None, "path": None}, "expected an image"),
    ("a\0b.png", "."),
    ("x" * 300, "."),
    ("\ud800.png", "."),
    ("loop/a.png", "."),
]


@pytest.mark.parametrize(("value", "words"), REFUSED)
def test_what_is_no_picture_is_refused_with_a_reason(
    value: Any, words: str, tmp_path: Path, store: PictureStore
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside.png").write_bytes(PNG)
    (home / "link.png").symlink_to(tmp_path / "outside.png")
    (home / "loop").symlink_to(home / "loop")
    with pytest.raises(PictureFault, match=words):
        store.keep(picture_data(value, [home]))


QUESTION = {"role": "user", "content": "How many?"}
MARKED = {"role": "user", "content": "First <image> then <image>?"}
PLACES = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}
OPENAI = {
    "role": "user",
    "content": [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": URI}},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ],
}


@pytest.mark.parametrize(
    ("row", "content"),
    [
        ({"prompt": "How many?", "image": PNG}, "*How many?"),
        ({"prompt": [QUESTION], "images": [PNG, OTHER]}, "**How many?"),
        ({"prompt": [MARKED], "images": [PNG, OTHER]}, "First * then *?"),
        ({"prompt": [PLACES], "image": PNG}, "*How many?"),
        ({"prompt": [OPENAI]}, "Look:*a\nb"),
        ({"prompt": "How many?", "images": [], "image": PNG}, "*How many?"),
        ({"prompt": "How many?", "images": 3, "image": ""}, "How many?"),
        ({"prompt": "A mark \ufffc here", "image": PNG}, "*A mark \ufffd here"),
    ],
)
def test_pictures_of_a_row_are_in_its_prompt(row: Any, content: str, store: PictureStore) -> None:
    read = reader_of(IMAGES, None, {"XP_PICTURES": str(store.directory)})
    (message,) = messages_of(row, read)
    assert message["content"] == content.replace("*", PICTURE_MARK)
    assert len(message.get("pictures", [])) == content.count("*")
    assert "".join(part if isinstance(part, str) else "*" for part in parts_of(message)) == content


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": [MARKED], "images": [PNG]}, "1 images and 2 marks"),
        ({"prompt": [PLACES], "images": []}, "places for more images than its 0"),
        ({"prompt": [{"role": "system", "content": "a"}], "image": PNG}, "no message of the user"),
        ({"prompt": [QUESTION], "image": "a.png"}, "from no file"),
        ({"prompt": "<image>how many?", "photo": URI}, "0 images and 1 marks"),
        ({"prompt": "how many?", "images": [PNG], "image": OTHER}, "keep one of them"),
    ],
)
def test_a_row_whose_pictures_have_no_place_is_refused(
    row: Any, words: str, store: PictureStore
) -> None:
    read = reader_of(IMAGES, None, {"XP_PICTURES": str(store.directory)})
    with pytest.raises(ProtocolError, match=words):
        messages_of(row, read)


def block(data: bytes = PNG) -> dict[str, Any]:
    return {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/png"}


TEXT = {"type": "text", "text": "see "}


def test_ors_blocks_are_pictures_in_prompts_and_results(store: PictureStore) -> None:
    (prompt,) = wire.prompt([TEXT, block()], "prompt", store)
    assert text_of(prompt).startswith("see [image 56x56 png ")
    reply = {
        "ok": True,
        "output": {
            "blocks": [block(), TEXT],
            "reward": 0.5,
            "finished": False,
        },
    }
    result = wire.tool_result(reply, "call", store)
    assert result.text == f"{PICTURE_MARK}see "
    assert [one["sha256"] for one in result.pictures] == digests_of([prompt])
    # And back, for the scores of a group.
    (written,) = wire.blocks([prompt], is_rich=False, store=store)
    assert written["blocks"] == [TEXT, block()]


def test_a_damaged_picture_of_a_tool_is_a_text_and_one_of_a_prompt_is_refused(
    store: PictureStore,
) -> None:
    output = {"blocks": [TEXT, block(b"no")], "reward": None, "finished": False}
    result = wire.tool_result({"ok": True, "output": output}, "call", store)
    assert result.text.startswith("see [image left out: not an image")
    assert result.pictures == ()
    with pytest.raises(ProtocolError, match="not an image"):
        wire.prompt([block(b"no")], "prompt", store)


def test_without_the_key_a_picture_is_refused_with_the_way_to_it() -> None:
    output = {"blocks": [block()], "reward": None, "finished": False}
    with pytest.raises(ProtocolError, match=r"text alone; set model\.images"):
        wire.tool_result({"ok": True, "output": output}, "call")


def test_openenvs_observations_have_pictures(store: PictureStore) -> None:
    mcp = {"tool_name": "look", "result": {"content": [TEXT, block()]}}
    assert observed({"observation": mcp}, "x", store).text == f"see \n{PICTURE_MARK}"
    screen = {"screenshot": URI, "text": "a page"}
    result = observed({"observation": screen}, "x", store)
    assert result.text == f"a page{PICTURE_MARK}"
    assert len(result.pictures) == 1
    assert observed({"observation": screen}, "x").text == json.dumps(screen)


def seen(store: PictureStore, *names: str) -> ToolResult:
    kept = [store.keep(drawn(puzzle(name)[0])) for name in names]
    return ToolResult(PICTURE_MARK * len(kept), pictures=tuple(kept))


def test_an_episode_has_at_most_its_number_of_pictures_and_counts_the_others(
    store: PictureStore,
) -> None:
    results = [seen(store, "a"), seen(store, "b", "c")]
    rules = replace(RULES, images=IMAGES)
    task = Task("fake", "train", 0)
    episode = Episode(
        task,
        lambda: FakeSession(lambda _, number: results[number]),
        rules,
    )
    episode.step(call("move"))
    (message,) = episode.step(call("move")).messages
    assert len(message["pictures"]) == 1
    assert "[image left out: an episode has at most 2]" in message["content"]
    assert episode.settle().pictures == {"read": 2.0, "left_out": 1.0}
    blind = Episode(
        task,
        lambda: FakeSession(lambda _, number: results[number]),
        RULES,
    )
    blind.step(call("move"))
    assert "set model.images" in str(blind.settle().void_reason)


def test_a_lost_store_is_named(store: PictureStore) -> None:
    with pytest.raises(XpError, match="makes the pictures again"):
        store.data("0" * 64)


def test_the_shipped_boards_are_the_same_everywhere_and_blind_ones_are_black() -> None:
    rows = ShapesMini().rows()
    assert {split: len(members) for split, members in rows.items()} == NUM_ROWS
    assert ShapesMini().rows()["test"][0] == rows["test"][0]
    (image,) = {row["image"] for row in ShapesMini(blind=True).rows()["test"]}
    assert pil(image).convert("RGB").getcolors() == [(56 * 56, (0, 0, 0))]


def drawing(image: Any, form: str, **options: Any) -> bytes:
    written = io.BytesIO()
    image.save(written, form, **options)
    return written.getvalue()


def test_files_of_one_name_beside_two_splits_are_refused(tmp_path: Path) -> None:
    folders = [tmp_path / "train", tmp_path / "test"]
    for folder, data in zip(folders, (PNG, OTHER), strict=True):
        folder.mkdir()
        (folder / "1.png").write_bytes(data)
    with pytest.raises(PictureFault, match="two different files have this path"):
        picture_data("1.png", folders)
    assert picture_data(str(folders[1] / "1.png"), folders) == OTHER
    (folders[1] / "2.png").write_bytes(OTHER)
    assert picture_data("2.png", folders) == OTHER


def test_sixteen_bits_keep_their_shades(store: PictureStore) -> None:
    from PIL import Image

    grey = Image.new("I;16", (4, 1))
    for column in range(4):
        grey.putpixel((column, 0), column * 20_000)
    image = store.image(store.keep(drawing(grey, "PNG"))["sha256"])
    assert [image.getpixel((column, 0))[0] for column in range(4)] == [0, 78, 156, 234]


def test_a_camera_turns_its_picture_once_and_junk_of_it_is_a_fault(store: PictureStore) -> None:
    from PIL import Image

    upright = Image.new("RGB", (8, 4), "red")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = store.keep(drawing(upright, "JPEG", exif=exif))
    assert store.image(picture["sha256"]).size == (picture["width"], picture["height"]) == (4, 8)
    with pytest.raises(PictureFault, match="damaged"):
        store.keep(drawing(upright, "PNG", exif=b"Exif\0\0junk"))


@pytest.mark.parametrize("pictures", [["a.png"], "a.png", [{"sha256": "../../x"}]])
def test_pictures_that_a_message_claims_are_refused(pictures: Any) -> None:
    with pytest.raises(ProtocolError, match="as parts of the content"):
        chat_messages([{"role": "user", "content": "x", "pictures": pictures}])


def test_prompts_with_other_pictures_are_other_prompts(store: PictureStore) -> None:
    def asked(name: str) -> list[Message]:
        shown = store.keep(drawn(puzzle(name)[0]))
        return [with_pictures(Message(role="user", content=""), [shown, "How many?"])]

    assert prompt_keys(asked("a")) != prompt_keys(asked("b"))
    assert prompt_keys(asked("a")) == prompt_keys(asked("a"))


def test_messages_keep_their_pictures_where_they_are_joined(store: PictureStore) -> None:
    shown = store.keep(PNG)
    result = with_pictures(Message(role="tool", content=""), ["see ", shown])
    nudge = with_pictures(Message(role="user", content=""), [shown, "again"])
    (message,) = as_user([result, nudge])
    assert message["content"].count(PICTURE_MARK) == len(message["pictures"]) == 2
    system = with_pictures(Message(role="system", content=""), ["rules ", shown])
    (opening,) = opening_messages("Be brief.", [system], ())
    assert opening["content"] == f"Be brief.\n\nrules {PICTURE_MARK}"


def test_an_endpoint_gets_the_pixels_that_a_training_reads(store: PictureStore) -> None:
    from PIL import Image

    clear = Image.new("RGBA", (100, 100), (0, 0, 0, 0))
    picture = store.keep(drawing(clear, "PNG"))
    sent = pil(picture_data(store.uri(picture["sha256"], 2500)))
    assert sent.size == (50, 50)
    assert sent.getpixel((0, 0)) == (255, 255, 255)
