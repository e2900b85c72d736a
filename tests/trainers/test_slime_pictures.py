"""Pictures under Slime: requests that SGLang's own code reads, and the pixels of the samples that Slime trains on."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.limits.words import has
from tests.trainers.slime_setup import (
    group_of,
    needs_slime,
    result_of,
    slime_arguments,
    worker_config,
)

pytestmark = needs_slime
SHOWN = (("a", "b"), ("", "c"), ("", ""))
"""Pictures of the prompt and of the reply: rows of two, one and no pictures."""
Says = Callable[[list[int]], list[int]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.seeing_sglang import qwen3_5

    return qwen3_5(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def parsed_arguments(model: Path) -> Any:
    return slime_arguments(model)


@pytest.fixture
def args(parsed_arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from slime.utils import http_utils

    from xp.envs import picture_store

    monkeypatch.setattr(http_utils.post, "__defaults__", (1, None))
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    own = SimpleNamespace(**vars(parsed_arguments))
    own.xp_root = tmp_path
    return own


def says(*turns: list[int]) -> Says:
    """The same turn of the policy for each context."""

    def turn(ids: list[int]) -> list[int]:
        del ids
        return [token for part in turns for token in part]

    return turn


def says_words(model: Path, words: str = "I see three.") -> Says:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return says(tokenizer(words, add_special_tokens=False)["input_ids"], [tokenizer.eos_token_id])


def says_letters(model: Path) -> Says:
    """The words in other tokens than the tokenizer's own: one for each letter."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "three"]
    return says(*letters, [tokenizer.eos_token_id])


def play(
    args: Any,
    model: Path,
    words: Says,
    shown: Any = SHOWN,
    *,
    is_patched: bool = False,
    evaluation: bool = False,
    rewrites: bool = False,
    size: int = 2,
) -> tuple[Any, list[Any], list[Any]]:
    """Episodes of each task in Slime's own rollout.

    Args:
        args: Slime's.
        model: of the policy.
        words: its turns.
        shown: see Gallery.
        is_patched: see SeeingSglang.
        evaluation: whether the episodes are held out.
        rewrites: whether each turn is a row of its own.
        size: episodes of a task.

    Returns:
        The engine, the samples in the order of the tasks, and the records.
    """
    from tests.support.gallery import Gallery
    from tests.support.rewriting import PROGRAM
    from tests.support.sections import sampling_of
    from tests.support.seeing_sglang import seeing_engine
    from tests.support.tiny_vision import IMAGES
    from tests.trainers.slime_play import Kept, play_group
    from xp.backends.slime.worker import rollout_process
    from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
    from xp.composition import compose
    from xp.envs.picture_store import PictureStore

    config = worker_config(args.xp_root, sampling_of(400, 60, 600), group_size=2)
    policy = config.spec.model.model_copy(update={"path": str(model), "images": IMAGES})
    changes: dict[str, Any] = {"model": policy}
    if rewrites:
        changes["env"] = compose([*PROGRAM]).env
    spec = config.spec.model_copy(update=changes)
    config = config.__class__(**{**vars(config), "spec": spec})
    gallery: Any = Gallery(
        PictureStore.of_stage(),
        shown,
        alternates=True,
        rewrites=rewrites,
    )
    path = f"{config.root}/worker.json"
    setattr(args, WORKER_ATTRIBUTE, path)
    records: Any = Kept()
    rollout_process._workers[path] = rollout_process.Worker(
        config,
        gallery,
        records,
    )
    with seeing_engine(args, model, words, is_patched=is_patched) as server:
        samples = [
            sample
            for number, row in enumerate(gallery.rows())
            for sample in play_group(
                args,
                group_of(row, size, number),
                evaluation=evaluation,
            )
        ]
    return server, samples, records.records


def reader_of(model: Path) -> Any:
    from tests.support.tiny_vision import seeing_chat
    from xp.envs.picture_store import PictureStore

    return seeing_chat(model, PictureStore.of_stage()).pictures


@pytest.mark.parametrize(
    "is_patched",
    [False, True],
    ids=["SGLang", "SGLang with Slime's patch"],
)
def test_sglang_reads_xps_tokens_and_pixels(args: Any, model: Path, is_patched: bool) -> None:
    server, samples, records = play(
        args,
        model,
        says_words(model),
        is_patched=is_patched,
    )
    assert [record.outcome.status for record in records] == ["finished"] * 6
    num_pictures = [len(body.get("image_data", ())) for body in server.asked]
    # Of two turns of two episodes of each task.
    of_tasks = [sorted(num_pictures[start : start + 4]) for start in (0, 4, 8)]
    assert of_tasks == [[1, 1, 2, 2], [0, 0, 1, 1], [0, 0, 0, 0]]
    reader = reader_of(model)
    for sample in samples:
        inputs = sample.multimodal_train_inputs or {"pixel_values": ()}
        of_sample = [
            seen
            for ids, seen in server.policy.inputs.items()
            if list(ids) == sample.tokens[: len(ids)]
        ]
        num_placeholders = sample.tokens.count(reader.placeholder_id)
        if not num_placeholders:
            assert sample.multimodal_train_inputs is None
            assert not of_sample
            continue
        grids = inputs["image_grid_thw"]
        assert int((grids.prod(1) // 4).sum()) == num_placeholders
        last = max(of_sample, key=lambda seen: len(seen["pixel_values"]))
        assert last["image_grid_thw"].equal(grids)
        assert float((last["pixel_values"] - inputs["pixel_values"]).abs().max()) < 1e-6
    # Each context that the engine read is a beginning of a sample's tokens.
    contexts = [body["input_ids"] for body in server.requests]
    assert all(any(sample.tokens[: len(ids)] == ids for sample in samples) for ids in contexts)


def test_slimes_conversion_has_the_pixels_of_each_row(args: Any, model: Path) -> None:
    from tests.trainers.slime_play import converted

    _, samples, _ = play(args, model, says_words(model))
    data = converted(args, samples)
    grids = [inputs and len(inputs["image_grid_thw"]) for inputs in data["multimodal_train_inputs"]]
    assert grids == [2, 2, 1, 1, None, None]
    assert [sum(mask) > 0 for mask in data["loss_masks"]] == [True] * 6


def test_each_row_of_an_episode_has_its_own_pixels(args: Any, model: Path) -> None:
    _, episodes, _ = play(args, model, says_words(model), rewrites=True)
    inputs = [[row.multimodal_train_inputs for row in rows] for rows in episodes]
    grids = [[part and len(part["image_grid_thw"]) for part in rows] for rows in inputs]
    assert grids == [[1, 1]] * 2 + [[None, 1]] * 2 + [[None, None]] * 2


def test_each_row_of_a_void_episode_has_a_token(args: Any, model: Path) -> None:
    """Slime's loss misreads a response of length 0."""
    words = says_words(model)([])
    turns = iter([words, [reader_of(model).placeholder_id, *words]])
    shown = [("a", "b")]
    _, (rows,), _ = play(
        args,
        model,
        lambda _: next(turns),
        shown,
        rewrites=True,
        size=1,
    )
    assert [row.response_length for row in rows] == [len(words), 1]
    assert [row.remove_sample for row in rows] == [True] * 2
    assert [row.multimodal_train_inputs is None for row in rows] == [False, True]


def test_an_evaluation_keeps_no_pixels(args: Any, model: Path) -> None:
    server, samples, _ = play(args, model, says_words(model), evaluation=True)
    assert any(body.get("image_data") for body in server.asked)
    assert [sample.multimodal_train_inputs for sample in samples] == [None] * 6


def test_tokens_that_the_engine_encodes_again_make_the_episode_void(args: Any, model: Path) -> None:
    """Only with Slime's patch, and only where the policy wrote other tokens than the tokenizer does."""
    _, samples, records = play(args, model, says_letters(model), is_patched=True)
    statuses = [record.outcome.status for record in records]
    # The first task has a picture before its first turn, the second one after it: the second turn has other tokens.
    assert statuses == ["void"] * 4 + ["finished"] * 2
    reasons = [str(record.outcome.void_reason) for record in records[:4]]
    assert all("the engine read" in reason for reason in reasons)
    assert [sample.remove_sample for sample in samples] == [True] * 4 + [False] * 2
    _, _, records = play(args, model, says_letters(model))
    assert [record.outcome.status for record in records] == ["finished"] * 6


def test_tokens_of_the_same_number_are_not_taken_on_trust() -> None:
    from xp.backends.slime.worker.pictures import PictureRequest
    from xp.episode.picture_reader import PictureMismatch

    PictureRequest({}, 7, None).check(7)
    PictureRequest({}, 7, 6).check(7)
    for request, num_read in (
        (PictureRequest({}, 7, None), 6),
        (
            PictureRequest(
                {},
                7,
                7,
            ),
            7,
        ),
    ):
        with pytest.raises(PictureMismatch, match="the tokens of pictures differ: the engine"):
            request.check(num_read)


def test_a_sampled_placeholder_makes_the_episode_void(args: Any, model: Path) -> None:
    placeholder = reader_of(model).placeholder_id
    words = says([placeholder], says_words(model)([]))
    _, samples, records = play(args, model, words)
    assert [record.outcome.status for record in records] == ["void"] * 6
    assert all("placeholders of images" in str(record.outcome.void_reason) for record in records)
    # Slime's model stops at a row with other placeholders than pixels, also where nothing of it is trained on.
    assert all(placeholder not in sample.tokens for sample in samples)
    assert [sample.multimodal_train_inputs for sample in samples] == [None] * 6
    assert all(sample.response_length == 1 and sample.remove_sample for sample in samples)


def test_the_network_is_that_of_slimes_script() -> None:
    from xp.fields.architecture import VISION_PROVIDER

    module, function = VISION_PROVIDER["--spec"]
    script = Path(os.environ["SLIME_PATH"], "scripts/models/qwen3.5-35B-A3B-vl.sh")
    assert has(script, f'MODEL_ARGS[1]="{module}"', f'MODEL_ARGS[2]="{function}"')


@pytest.mark.parametrize("size", [(100, 60), (28, 28), (500, 333), (17, 90)])
def test_a_picture_is_sent_in_the_size_of_its_patches(
    size: tuple[int, int], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own processor resizes it no more, so that its pixels are those of the update."""
    import torch
    from PIL import Image

    from xp.backends.slime.worker.pictures import SlimePictures
    from xp.envs import picture_store
    from xp.envs.picture_store import PictureStore

    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path))
    torch.manual_seed(0)
    noise = torch.randint(0, 256, (size[1], size[0], 3), dtype=torch.uint8).numpy()
    written = io.BytesIO()
    Image.fromarray(noise).save(written, "PNG")
    digest = PictureStore.of_stage().keep(written.getvalue())["sha256"]
    reader = reader_of(model)
    engine = SlimePictures(reader)
    placeholders = [reader.placeholder_id] * reader.num_tokens(digest)
    request = engine.request([5, *placeholders, 6], [digest])
    assert request is not None
    assert request.fields["input_ids"] == [5, reader.placeholder_id, 6]
    (uri,) = request.fields["image_data"]
    sent = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    again = reader.processor.image_processor(images=[sent], return_tensors="pt")
    assert again["image_grid_thw"].equal(reader.pixels([digest])["image_grid_thw"])
    assert again["pixel_values"].equal(reader.pixels([digest])["pixel_values"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_slimes_network_with_pictures_agrees_and_trains(tmp_path: Path) -> None:
    """Its packing, its plug-in of Qwen3.5, its loss and its export, with torch in place of the kernels."""
    result = result_of("slime_vision", str(tmp_path))
    # The last two rows are of void episodes, without meaning and without a trained token.
    assert result["num_pictures"] == [2, 2, 1, 1, 0, 0, 0, 0]
    assert [number > 0 for number in result["num_trained"]] == [True] * 6 + [False] * 2
    assert result["gap"] < 1e-5
    assert result["gap_in_one_micro_batch"] < 1e-5
    # With the pixels of other pictures, the log-probabilities of the rows with pictures differ.
    assert result["gap_of_other_pixels"] > 1e-3
    assert result["grad_norm"] > 0
    assert result["changed"]
    assert not [name for name in result["changed"] if "visual" in name]
    assert result["missing"] == []
