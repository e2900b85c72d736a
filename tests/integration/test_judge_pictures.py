"""A judge that reads images: what its requests have, what is on record, and which plans have one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.stubs.chat_server import ChatServer, serving
from tests.support.fake_session import RULES
from tests.support.judges import config, verdict
from tests.support.picture_talk import board
from tests.support.tiny_vision import IMAGES, message
from xp.__main__ import main
from xp.envs import picture_store
from xp.envs.base import Message
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.episode.group import GroupScores
from xp.episode.judge import Judge, JudgeLog
from xp.errors import ExitCode
from xp.spec.judge import JudgeScoring
from xp.spec.model import Images

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {"pictures": [1]}}}


def write(body: Mapping[str, Any]) -> dict[str, Any]:
    """Verdicts of any form."""
    return verdict(body, score=5, scores=[5, 5], better="tie")


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(ChatServer(write=write)) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def dialogue(store: PictureStore, name: str) -> list[Message]:
    """An answer of a call, a result with a picture, and a text."""
    call = Message(role="assistant", content="", tool_calls=[CALL])
    result = message("tool", "Closer: ", store.keep(board(name)))
    return [call, result, Message(role="assistant", content="Two.")]


def judged(
    server: ChatServer,
    store: PictureStore,
    *answers: Any,
    scoring: JudgeScoring = JudgeScoring.POINTWISE,
    images: Images | None = IMAGES,
    log: JudgeLog | None = None,
    reads_images: bool = True,
) -> GroupScores:
    environ = {picture_store.VARIABLE: str(store.directory)}
    rule = config(server, scoring, images=reads_images)
    opening = [message("user", store.keep(board("a")), "How many?")]
    judge = Judge(
        rule,
        environ,
        lambda _: {},
        log or JudgeLog(),
        RULES.dialect,
        images,
    )
    with closing(judge):
        return judge.score_answers(opening, answers, rule.rubric, "t")


def shown(body: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[Any]]:
    """The JSON object, the names of the images, and their PIL images of a request."""
    first, *others = body["messages"][1]["content"]
    names = [part["text"] for part in others[::2]]
    urls = [part["image_url"]["url"] for part in others[1::2]]
    return json.loads(first["text"]), names, urls


def test_a_request_has_the_pictures_of_the_prompt_and_of_the_answer(
    server: ChatServer, store: PictureStore
) -> None:
    scores = judged(server, store, dialogue(store, "b"))
    assert scores.values == [0.5]
    (body,) = server.requests
    data, names, urls = shown(body)
    assert data["task"] == [{"role": "user", "content": "[image 1]How many?"}]
    assert [turn["content"] for turn in data["answer"]] == ["", "Closer: [image 2]", "Two."]
    assert data["answer"][0]["tool_calls"] == [CALL]
    assert names == ["[image 1]", "[image 2]"]
    assert [pixels(url) for url in urls] == [pixels(uri(board(name))) for name in "ab"]
    assert "are named in it, [image 1] and so on" in body["messages"][0]["content"]


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def pixels(url: str) -> Any:
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(picture_data(url))).convert("RGB")
    return image.size, image.tobytes()


def test_records_have_digests_and_are_a_cache(
    server: ChatServer, store: PictureStore, tmp_path: Path
) -> None:
    log = JudgeLog(tmp_path / "judge")
    for name in "bb":
        judged(server, store, dialogue(store, name), log=log)
    assert len(server.requests) == 1
    judged(server, store, dialogue(store, "c"), log=log)
    assert len(server.requests) == 2
    (file,) = (tmp_path / "judge").iterdir()
    assert "base64" not in file.read_text()
    line = json.loads(file.read_text().splitlines()[0])
    images = [part for part in line["messages"][1]["content"] if part["type"] == "image"]
    assert [image["sha256"] for image in images] == [
        store.keep(board(name))["sha256"] for name in "ab"
    ]


JUDGED = "env.judge={{rubric: r, model: {{url: '{url}', name: m, {more}}}}}"


@pytest.mark.parametrize(
    ("more", "code"), [("images: true", ExitCode.OK), ("key: null", ExitCode.PLAN)]
)
def test_a_plan_with_pictures_needs_a_judge_that_reads_them(
    more: str, code: ExitCode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = JUDGED.format(url="http://127.0.0.1:9/v1", more=more)
    words = ("env=shapes_mini", "model=tiny_vlm", rule, f"outputs={tmp_path}")
    assert main(["plan", *words]) == code
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert ("set either its judge.model.images=true if its model reads them" in text) == bool(code)


@pytest.mark.slow
def test_the_judge_of_a_training_and_of_its_records_gets_pictures(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    monkeypatch.chdir(tmp_path)
    server.write = lambda body: verdict(body, score=len(server.requests) % 10)
    rule = JUDGED.format(url=server.url, more="images: true")
    outputs = tmp_path / "outputs"
    small = (
        *("training.num_steps=1", "training.prompts_per_step=2", "training.group_size=2"),
        "training.warmup_updates=0",
        *("training.micro_batch_size=4", "evaluation.every=null"),
    )
    words = ("env=shapes_mini", "model=tiny_vlm", rule, f"outputs={outputs}", *small)
    # The few answers may be equal.
    assert main([*words]) in (ExitCode.OK, ExitCode.NOT_TRAINED)
    assert server.requests
    for body in server.requests:
        data, names, urls = shown(body)
        assert names[0] == "[image 1]"
        assert len(names) == len(urls) == json.dumps(data).count("[image ")
    (run,) = (outputs / "runs").iterdir()
    num_requests = len(server.requests)
    assert main(["rescore", str(run), rule.replace("rubric: r", "rubric: Is it short")]) == 0
    assert len(server.requests) > num_requests
    assert all(shown(body)[1] for body in server.requests[num_requests:])
