"""Pictures for vLLM: in the size of xp's processor, with one placeholder each, and with the ids of xp after its answer."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("PIL")

from tests.support.gallery import Gallery
from tests.support.http_server import Reply, Request, http_server
from tests.support.sections import sampling_of
from tests.support.tiny_vision import FAMILIES, message, seeing_chat, vision_model
from xp.backends.trl.worker.colocated import ColocatedEngine
from xp.backends.trl.worker.generation import Generation
from xp.composition import compose
from xp.envs.base import Picture
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of
from xp.episode.outcome import EpisodeStatus
from xp.episode.picture_reader import PIXELS, PictureMismatch
from xp.episode.sized_pictures import SizedPictures
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.planning.engine_arguments import vllm_server
from xp.results.evaluation.local import check_engine
from xp.results.evaluation.settings import settings
from xp.spec.model import Images
from xp.worker.engines.completions import ServerEngine
from xp.worker.engines.conversation import GenerationRequest, Opening
from xp.worker.engines.play import EpisodePlay
from xp.worker.engines.vllm_pictures import PictureClient, VLLMPictures

SAMPLING = sampling_of(400, 5, 400)
SIZES = ((211, 157), (28, 28), (500, 20), (13, 17), (1, 1), (640, 480), (97, 300))
LIMITS = Images(max_pixels=40_000, per_episode=8)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


@pytest.fixture
def chat(model: Path, store: PictureStore) -> ChatTokens:
    return seeing_chat(model, store, LIMITS)


def noise(store: PictureStore, width: int, height: int) -> Picture:
    from PIL import Image

    return store.keep(picture_data(Image.effect_noise((width, height), 90).convert("RGB")))


@pytest.mark.parametrize("size", SIZES)
def test_the_processor_leaves_the_size_as_it_is(
    size: tuple[int, int], chat: ChatTokens, store: PictureStore
) -> None:
    from PIL import Image

    reader = chat.pictures
    assert reader is not None
    digest = noise(store, *size)["sha256"]
    pictures = SizedPictures(reader)
    again = reader.processor.image_processor(images=[pictures.image(digest)], return_tensors="pt")
    assert again[PIXELS].equal(reader.pixels([digest])[PIXELS])
    with Image.open(io.BytesIO(base64.b64decode(pictures.png(digest)))) as sent:
        assert sent.tobytes() == pictures.image(digest).tobytes()


def asked(chat: ChatTokens, store: PictureStore) -> GenerationRequest:
    """Two pictures without a text between them, and one after a text."""
    shown = [noise(store, *size) for size in SIZES[:3]]
    said = [message("user", *shown[:2], "then", shown[2], "?")]
    return GenerationRequest(
        chat.prompt(said, "[]"),
        3,
        41,
        tuple(digests_of(said)),
    )


def test_each_picture_has_one_placeholder(chat: ChatTokens, store: PictureStore) -> None:
    assert chat.pictures is not None
    request = asked(chat, store)
    pictures = SizedPictures(chat.pictures)
    short = pictures.short_ids(request.ids, request.pictures)
    place = chat.pictures.placeholder_id
    assert short.count(place) == 3
    counts = iter(map(chat.pictures.num_tokens, request.pictures))
    expanded = [token for one in short for token in [one] * (next(counts) if one == place else 1)]
    assert expanded == list(request.ids)
    places = pictures.places(request.ids, request.pictures)
    assert [len(numbers) for numbers in places] == [
        *map(chat.pictures.num_tokens, request.pictures)
    ]
    assert {request.ids[at] for numbers in places for at in numbers} == {place}
    with pytest.raises(PictureMismatch, match="the tokens of pictures differ"):
        pictures.places([*request.ids, place], request.pictures)


def test_a_server_gets_the_pictures_and_must_return_xps_ids(
    chat: ChatTokens, store: PictureStore
) -> None:
    assert chat.pictures is not None
    request = asked(chat, store)
    lost = 0

    def answer(_: Request) -> Reply:
        logprobs = {"content": [{"logprob": -0.25}, {"logprob": -0.5}]}
        choice = {"token_ids": [8, 2], "logprobs": logprobs}
        ids = list(request.ids)[lost:]
        return Reply({"choices": [choice], "prompt_token_ids": ids})

    pictures = VLLMPictures(SizedPictures(chat.pictures))
    with http_server(answer) as server:
        client = PictureClient(
            server.url,
            SAMPLING,
            [2],
            "log",
            never=[90],
            pictures=pictures,
        )
        turn = client.answer(request)
        assert (list(turn.ids), list(turn.logprobs)) == ([8, 2], [-0.25, -0.5])
        lost = 1
        with pytest.raises(XpError, match="or later"):
            client.answer(request)
    sent = server.requests[0]
    assert sent.path == "/inference/v1/generate"
    assert sent.json["token_ids"] == pictures.short_ids(request)
    assert [part["uuid"] for part in sent.json["content_parts"]] == list(request.pictures)
    assert sent.json["sampling_params"]["logit_bias"] == {"90": -100.0}
    assert sent.json["sampling_params"]["stop_token_ids"] == [2]


class Engine:
    """A stand-in for vLLM's engine, which answers with one token.

    Args:
        ids: the ids that it says it has generated after.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.prompts: list[Any] = []
        self._ids = list(ids)
        self._names: list[str] = []

    def add_request(self, name: str, prompt: Any, _: Any) -> None:
        self.prompts.append(prompt)
        self._names.append(name)

    def has_unfinished_requests(self) -> bool:
        return bool(self._names)

    def step(self) -> list[Any]:
        written = SimpleNamespace(token_ids=[2], logprobs=[{2: SimpleNamespace(logprob=-0.5)}])
        names = self._names
        self._names = []
        return [
            SimpleNamespace(
                finished=True, request_id=name, prompt_token_ids=self._ids, outputs=[written]
            )
            for name in names
        ]


def test_an_engine_of_this_process_gets_the_pictures(
    chat: ChatTokens, store: PictureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat.pictures is not None
    request = asked(chat, store)
    pictures = VLLMPictures(SizedPictures(chat.pictures), "/7")
    monkeypatch.setattr(ColocatedEngine, "_parameters", lambda *_: None)

    def turn(ids: Sequence[int]) -> tuple[Any, Any]:
        engine = Engine(ids)
        generation = SimpleNamespace(tensor_parallel_size=1, llm=SimpleNamespace(llm_engine=engine))
        opening = Opening(
            [request.ids],
            ["a"],
            1,
            lambda _: None,
            [request.pictures],
        )
        played = ColocatedEngine(
            generation,
            opening,
            [2],
            SAMPLING,
            "1",
            pictures=pictures,
        )
        played.begin(0)
        played.step(is_live=True)
        return engine.prompts[0], played.conversations[0]

    prompt, row = turn(request.ids)
    assert prompt["prompt_token_ids"] == pictures.short_ids(request)
    sizes = [image.size for image in prompt["multi_modal_data"]["image"]]
    assert sizes == [pictures.sized.image(digest).size for digest in request.pictures]
    # After an update vLLM must not take what its vision part made before it.
    names = [f"{digest}/7" for digest in request.pictures]
    assert prompt["multi_modal_uuids"] == {"image": names}
    assert row.completion_ids == [2]
    with pytest.raises(XpError, match="vLLM's prompt has 2 tokens"):
        turn([1, 2])


def test_a_trainings_pictures_are_encoded_once_and_named_anew_after_each_update(
    chat: ChatTokens, store: PictureStore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoConfig

    assert chat.pictures is not None
    request = asked(chat, store)
    encoded: list[str] = []
    image = chat.pictures.image
    monkeypatch.setattr(
        chat.pictures, "image", lambda digest: encoded.append(digest) or image(digest)
    )

    def answer(_: Request) -> Reply:
        choice = {"token_ids": [2], "logprobs": {"content": [{"logprob": -0.5}]}}
        return Reply({"choices": [choice], "prompt_token_ids": list(request.ids)})

    ranks: Any = SimpleNamespace(wait=lambda: None)
    generation = Generation(chat, ranks, "log", is_ahead=False, guesses=False)
    with http_server(answer) as server:
        vllm = SimpleNamespace(
            mode="server",
            server_base_url=server.url,
            enable_sleep_mode=False,
            sync_weights=lambda: None,
        )
        trainer = SimpleNamespace(
            args=SimpleNamespace(use_vllm=True),
            vllm_generation=vllm,
            accelerator=SimpleNamespace(unwrap_model=lambda model: model),
            model=SimpleNamespace(config=AutoConfig.from_pretrained(model)),
        )
        for _ in range(2):
            generation.update(trainer)
            delivered: list[Any] = []
            opening = Opening(
                [request.ids],
                ["a"],
                1,
                delivered.append,
                [request.pictures],
            )
            with generation.engine(trainer) as engine_of:
                engine: Any = engine_of(SAMPLING, "1")(opening)
                engine.begin(0)
                engine._pool.shutdown(wait=True)
            assert delivered[0].ids == [2]
    assert sorted(encoded) == sorted(request.pictures)
    names = [[part["uuid"] for part in sent.json["content_parts"]] for sent in server.requests]
    assert names == [[f"{digest}/{step}" for digest in request.pictures] for step in (1, 2)]


def test_a_sampled_placeholder_makes_its_episode_void_and_the_others_go_on(
    chat: ChatTokens, store: PictureStore
) -> None:
    assert chat.pictures is not None
    reader = chat.pictures
    gallery: Any = Gallery(store, [("a", "b"), ("", "c"), ("d", "")])
    wanted = digests_of(gallery.rows()[0].messages)

    def answer(request: Request) -> Reply:
        digests = [part["uuid"] for part in request.json["content_parts"]]
        sizes = iter(map(reader.num_tokens, digests))
        ids = [
            again
            for token in request.json["token_ids"]
            for again in [token] * (next(sizes) if token == reader.placeholder_id else 1)
        ]
        first = reader.placeholder_id if digests == wanted else 40
        choice = {
            "token_ids": [first, chat.end_id],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.5}]},
        }
        return Reply({"choices": [choice], "prompt_token_ids": ids})

    pictures = VLLMPictures(SizedPictures(reader))
    with http_server(answer) as server:
        client = PictureClient(
            server.url,
            SAMPLING,
            chat.end_ids,
            "log",
            pictures=pictures,
        )
        rollouts = list(
            EpisodePlay(
                lambda opening: ServerEngine(
                    client,
                    opening,
                    "1",
                    lambda _: False,
                ),
                chat,
                [(row, 0) for row in gallery.rows()],
                gallery,
            )
        )
    statuses = [rollout.outcome.status for rollout in rollouts]
    assert statuses == [EpisodeStatus.VOID, EpisodeStatus.FINISHED, EpisodeStatus.FINISHED]
    assert "placeholders of images" in str(rollouts[0].outcome.void_reason)
    # The engine got nothing after the fault.
    assert len(server.requests) == 5
    assert sum(rollouts[0].conversation.mask) == 2


SEES = ("env=shapes_mini", "model=tiny_vlm", "backend.engine.name=vllm")


def test_a_server_of_a_run_takes_pictures_and_one_without_them_does_not() -> None:
    def arguments(*words: str) -> str:
        return " ".join(vllm_server(compose([*SEES, *words]), 1, takes_weights=True).arguments)

    limits = '--enable-scale-out --limit-mm-per-prompt {"image": 2, "video": 0}'
    assert limits in arguments("model.images.per_episode=2")
    assert "--enable-scale-out" not in arguments("model.images=null", "env=whodunit_mini")


def test_sglang_gets_no_pictures_in_an_evaluation() -> None:
    how = settings({"eval.engine": "sglang"}).eval
    with pytest.raises(XpError, match=r"SGLang no pictures; set eval\.engine=vllm") as caught:
        check_engine(compose(SEES), how, is_local=True)
    assert caught.value.code is ExitCode.PLAN
