"""Dialogues with pictures: where a row has them, which tokens are trained on, and what is left out or refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.demonstrations import RULE
from tests.support.picture_talk import board, part, uri
from tests.support.sections import replace
from tests.support.tiny_vision import seeing_chat, vision_model
from xp.envs.base import PICTURE_MARK, Message
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of, with_pictures
from xp.envs.rows import reader_of
from xp.episode.prompt import prompt_keys
from xp.episode.tokens import ChatTokens
from xp.errors import XpError
from xp.spec.dialect import Dialect
from xp.spec.model import Images
from xp.spec.sft import LongDialogues, LossOn
from xp.worker.demonstrations import Demonstration, Example, chosen, rendered
from xp.worker.dialogues import of_messages

IMAGES = Images(max_pixels=200_704, per_episode=2)
ANSWER = {"role": "assistant", "content": "two"}
PLACE = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]}
TEXT = {"role": "user", "content": "How many?"}


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def read(tmp_path: Path, *rows: Any, images: Images | None = IMAGES) -> list[Demonstration]:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    environ = {"XP_PICTURES": str(tmp_path / "pictures")}
    return list(of_messages(str(file), read=reader_of(images, str(file), environ)))


FORMS: list[dict[str, Any]] = [
    {"messages": [PLACE], "images": [uri("a")]},
    {"messages": [TEXT], "image": "a.png"},
    {"messages": [{"role": "user", "content": "<image>How many?"}], "images": ["more/../a.png"]},
]


@pytest.mark.parametrize("row", FORMS)
def test_a_row_has_its_picture_however_it_is_written(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(board("a"))
    (tmp_path / "more").mkdir()
    (dialogue,) = read(tmp_path, {**row, "messages": [*row["messages"], ANSWER]})
    assert dialogue.messages[0]["content"] == f"{PICTURE_MARK}How many?"
    picture = PictureStore(tmp_path / "pictures").keep(board("a"))
    assert digests_of(dialogue.messages) == [picture["sha256"]]


def test_other_forms_of_rows_have_pictures_too(tmp_path: Path) -> None:
    conversations = [
        {"from": "human", "value": "<image>How many?"},
        {"from": "gpt", "value": "two"},
    ]
    rows = (
        {"conversations": conversations, "images": [uri("a")]},
        {"prompt": [PLACE], "completion": [ANSWER], "images": [uri("a")]},
        {"instruction": "How many?", "output": "two", "image": uri("a")},
    )
    keys = {dialogue.task_id for dialogue in read(tmp_path, *rows)}
    assert len(keys) == 1


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [TEXT, ANSWER], "images": ["../a.png"]}, "row 1: .*outside the folder"),
    ({"messages": [TEXT, ANSWER], "images": ["https://host/a.png"]}, "xp downloads no images"),
    ({"messages": [TEXT, ANSWER], "audio": [{"bytes": "x"}]}, "text and pictures alone"),
]


@pytest.mark.parametrize(("row", "words"), REFUSED)
def test_a_picture_that_cannot_be_read_is_refused_with_its_row(
    row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(XpError, match=words):
        read(tmp_path, row)


def test_a_model_of_text_has_no_rows_with_pictures(tmp_path: Path) -> None:
    with pytest.raises(XpError, match=r"model\.images=true"):
        read(
            tmp_path,
            {"messages": [TEXT, ANSWER], "images": [uri("a")]},
            images=None,
        )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model("qwen2_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture
def chat(model: Path, store: PictureStore) -> ChatTokens:
    return seeing_chat(model, store, IMAGES)


def tokens(
    chat: ChatTokens, dialogues: list[Demonstration], excluded: Any = frozenset(), **rule: Any
) -> tuple[list[Example], Counter[str]]:
    """The episodes to train on, and what was left out."""
    spec = replace(RULE, sft=replace(RULE.sft, **rule))
    counts = Counter[str]()
    best = chosen(dialogues, spec, excluded, counts)
    trained, _ = rendered(best, spec, chat, lambda _: Dialect.HERMES, counts)
    return trained, counts


def asked(*names: str) -> dict[str, Any]:
    parts = [part(name) for name in names]
    content = [*parts, {"type": "text", "text": "How many?"}]
    return {"messages": [{"role": "user", "content": content}, ANSWER]}


def test_a_held_out_prompt_is_one_with_the_same_picture(
    chat: ChatTokens, tmp_path: Path, store: PictureStore
) -> None:
    prompt = with_pictures(Message(role="user", content=""), [store.keep(board("a")), "How many?"])
    excluded = frozenset(prompt_keys([prompt]))
    trained, counts = tokens(
        chat,
        read(tmp_path, asked("a"), asked("b")),
        excluded,
    )
    assert counts == {"of held-out tasks": 1}
    (example,) = trained
    assert example.pictures == [store.keep(board("b"))["sha256"]]


def test_a_placeholder_is_never_trained_on(chat: ChatTokens, tmp_path: Path) -> None:
    assert chat.pictures is not None
    (example,), _ = tokens(chat, read(tmp_path, asked("a")), loss_on=LossOn.ALL)
    placeholder = chat.pictures.placeholder_id
    assert placeholder in example.ids
    for token, is_trained in zip(example.ids[1:], example.mask[1:], strict=True):
        assert bool(is_trained) == (token != placeholder)


def test_a_dialogue_is_not_cut_within_a_picture(chat: ChatTokens, tmp_path: Path) -> None:
    assert chat.pictures is not None
    content = [{"type": "text", "text": "Again."}, part("b")]
    row = asked("a")
    row["messages"] += [{"role": "user", "content": content}, ANSWER]
    (whole,), _ = tokens(chat, read(tmp_path, row))
    last = max(at for at, token in enumerate(whole.ids) if token == chat.pictures.placeholder_id)
    (example,), _ = tokens(
        chat,
        read(tmp_path, row),
        max_tokens=last,
        too_long=LongDialogues.CUT,
    )
    assert example.is_cut
    assert example.pictures == whole.pictures[:1]
    assert chat.pictures.fault(example.ids, example.pictures) is None
    assert example.ids == whole.ids[: len(example.ids)]


def test_a_dialogue_with_too_many_pictures_is_left_out(chat: ChatTokens, tmp_path: Path) -> None:
    trained, counts = tokens(
        chat,
        read(
            tmp_path,
            asked("a", "b", "c"),
            asked("a", "b"),
        ),
    )
    assert counts == {"with more than model.images.per_episode=2 images": 1}
    assert [len(example.pictures) for example in trained] == [2]
