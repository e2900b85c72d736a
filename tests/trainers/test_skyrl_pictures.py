"""Pictures under SkyRL: its engine's log-probabilities and those of its own update, over two turns."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.cases import few
from tests.support.media_commands import weights
from tests.support.picture_families import picture_model
from tests.support.skyrl_pictures import batch_of, play, update_logprobs
from tests.support.tiny_vision import IMAGES, vision_model
from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine
from xp.envs import picture_store
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.episode.metrics_file import read_metrics
from xp.episode.outcome import EpisodeStatus
from xp.fields.model import OUTSIDE_TEXT

TOLERANCE = 1e-5
SHOWN = (("a", "b"), ("", "c"), ("", ""))
"""Rows of two, one and no pictures."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model("qwen2_vl", tmp_path_factory.mktemp("models") / "model")


@pytest.mark.parametrize("family", few(["qwen2_vl", "qwen3_vl", "qwen3_5", "qwen2_5_vl"], 3))
def test_log_probabilities_of_engine_and_update_agree_over_two_turns(
    family: str, store: Path
) -> None:
    if family == "qwen3_5":
        model = picture_model(family, store / family)
    else:
        model = vision_model(family, store / family)
    played = play(model, store, SHOWN)
    batch = played.batch
    assert [len(grid) for grid in batch["image_grid_thw"]] == [2, 2, 1, 1, 0, 0]
    assert [episode.episode.settle().num_turns for episode in played.episodes] == [2] * 6
    is_policys = batch["loss_mask"] > 0
    assert is_policys.any(-1).all()
    for size in (1, 3, 6):
        logprobs = update_logprobs(model, batch, size)
        gap = (logprobs - batch["rollout_logprobs"])[is_policys].abs().max()
        assert gap < TOLERANCE, size
    # The pixels matter: with those of another row, they differ.
    swapped = batch["pixel_values"]
    batch["pixel_values"] = type(swapped)([torch.rand_like(pixels) for pixels in swapped])
    other = update_logprobs(model, batch, 6)
    differs = (other - batch["rollout_logprobs"]).abs() * is_policys
    assert differs[:2].max() > 100 * TOLERANCE
    assert differs[4:].max() < TOLERANCE


def gap(model: Path, batch: Any, size: int = 2, **settings: Any) -> float:
    """Largest difference of a policy's token between engine and update."""
    logprobs = update_logprobs(model, batch, size, **settings)
    differences = (logprobs - batch["rollout_logprobs"])[batch["loss_mask"] > 0]
    assert len(differences)
    return float(differences.abs().max())


def test_an_episode_of_several_rows_has_the_pictures_of_each(model: Path, store: Path) -> None:
    played = play(model, store, SHOWN, rewrites=True)
    assert played.output["is_last_step"] == [False, True] * 6
    grids = [len(grid) for grid in played.batch["image_grid_thw"]]
    assert grids == [1, 1] * 2 + [0, 1] * 2 + [0, 0] * 2
    assert gap(model, played.batch) < TOLERANCE


def test_batches_with_and_without_pictures_are_joined_and_cut(model: Path, store: Path) -> None:
    """By SkyRL's own functions, of dynamic sampling and of its asynchronous trainer."""
    from skyrl.train.generators.utils import concatenate_generator_outputs, slice_generator_output

    without = play(model, store, [("", "")], joins=False).output
    played = play(model, store, SHOWN)
    cut = slice_generator_output(played.output, [2, 3, 0, 1])
    batch = batch_of(
        played,
        concatenate_generator_outputs([without, cut]),
        [*"aabbcc"],
    )
    assert [len(grid) for grid in batch["image_grid_thw"]] == [0, 0, 1, 1, 2, 2]
    assert gap(model, batch) < TOLERANCE


def test_adapters_are_on_language_layers_alone(model: Path, store: Path) -> None:
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    settings = {"lora_rank": 2, "target_modules": "all-linear", "exclude_modules": OUTSIDE_TEXT}
    network = HFModelWrapper(
        str(model),
        use_flash_attention_2=False,
        bf16=False,
        **settings,
    )
    adapted = [name for name, _ in network.named_parameters() if "lora_" in name]
    assert adapted
    assert all("language_model" in name for name in adapted)
    assert gap(model, play(model, store, SHOWN).batch, **settings) < TOLERANCE


def test_a_teacher_in_the_references_place_reads_the_pictures_of_each_row(
    model: Path, store: Path
) -> None:
    """SkyRL's trainer gives both networks the pixels; the advantages are the differences of their log-probabilities."""
    teacher = vision_model("qwen2_vl", store / "teacher", spread=0.06)
    words = ("algorithm=opd", f"algorithm.distill.teacher={teacher}", "training.kl_coef=0")
    played = play(model, store, SHOWN, words=words)
    skyrl = played.trainer
    skyrl.ref_model = teacher
    skyrl.dispatch.empty_cache = lambda *_: None
    skyrl.tracker.compared = lambda *_: None
    places = {"policy": model, "ref": teacher}
    skyrl._execute_forward_pass = lambda role, batch, **_: update_logprobs(
        places[role],
        batch,
        2,
    )
    batch = skyrl.fwd_logprobs_values_reward(played.batch)
    advantages = skyrl.compute_advantages_and_returns(batch)["advantages"]
    is_policys = batch["loss_mask"] > 0
    own = update_logprobs(teacher, played.batch, 1) - batch["rollout_logprobs"]
    assert (advantages - own)[is_policys].abs().max() < TOLERANCE
    assert own[is_policys].abs().max() > 100 * TOLERANCE


class PlaceholderEngine(CpuEngine):
    """Samples a placeholder of a picture in each first turn of a prompt with one."""

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        answer = await super().generate(input_batch, model)
        features = input_batch["mm_features"]
        if features is not None and len(features[0]["mm_hashes"]["image"]) == 1:
            (place,) = features[0]["mm_placeholders"]["image"]
            answer["response_ids"][0][0] = input_batch["prompt_token_ids"][0][place["offset"]]
        return answer


def test_a_sampled_placeholder_makes_the_episode_void(model: Path, store: Path) -> None:
    engine = PlaceholderEngine(str(model), store / "weights", 1, IMAGES)
    played = play(model, store, SHOWN, engine=engine)
    outcomes = [episode.episode.settle() for episode in played.episodes]
    void = EpisodeStatus.VOID
    assert [outcome.status is void for outcome in outcomes] == [True] * 4 + [False] * 2
    assert "placeholders of images" in str(outcomes[0].void_reason)
    assert not played.batch["loss_mask"][:4].any()
    assert gap(model, played.batch) < TOLERANCE


class OtherRenderer:
    """Servers that have one token more for each picture."""

    async def render_chat_completion(self, request_payload: Any) -> Any:
        (part,) = request_payload["json"]["messages"][0]["content"]
        assert part["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
        features = {"mm_placeholders": {"image": [{"offset": 1, "length": 5}]}}
        return {"token_ids": [1, *[260] * 5], "features": features}


def test_a_picture_of_another_number_of_tokens_in_the_engine_makes_the_episode_void(
    model: Path,
    store: Path,
) -> None:
    played = play(
        model,
        store,
        [("", ""), ("a", "")],
        renderer=OtherRenderer(),
        joins=False,
    )
    outcomes = [episode.episode.settle() for episode in played.episodes]
    assert outcomes[0].status is EpisodeStatus.FINISHED
    assert "the engine has 5 tokens for an image" in str(outcomes[2].void_reason)


def test_a_row_that_such_a_picture_begins_is_not_trained_on(model: Path, store: Path) -> None:
    shown = [("", "a"), ("", "c"), ("", "")]
    played = play(model, store, shown, renderer=OtherRenderer(), rewrites=True)
    assert played.output["stop_reasons"] == ["void"] * 8 + ["stop"] * 4
    assert played.batch["loss_mask"].any(-1).tolist() == [False] * 8 + [True] * 4


ROWS = 6
SMALL = (
    *("backend=skyrl", "hardware=cpu", "env=graded", "env.grader=number", "model=hf"),
    *("model.dtype=float32", "model.images=true", "env.held_out=null"),
    *("training.prompts_per_step=3", "training.group_size=2", "training.updates_per_step=1"),
    *("training.warmup_updates=0", "training.learning_rate=1e-3", "training.entropy_coef=0.01"),
    *("training.kl_coef=0.01", "training.max_prompt_tokens=300", "training.num_steps=2"),
    *("training.max_tokens_per_turn=8", "training.max_response_tokens=64"),
)


def leave_rows(file: Path) -> None:
    """Writes questions with no, one and two pictures."""
    lines = []
    for number in range(ROWS):
        images = [
            "data:image/png;base64,"
            + base64.b64encode(drawn(puzzle(f"{number}/{part}")[0])).decode()
            for part in range(number % 3)
        ]
        lines.append({"prompt": f"How many, {number}?", "images": images, "answer": "2"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "words",
    [
        ("training.micro_batch_size=2",),
        # One of the processes has a picture in its micro-batch, and the other one has none.
        (
            *("hardware.accelerators_per_node=2", "training.micro_batch_size=1"),
            *("training.prompts_per_step=2", "training.num_steps=1"),
        ),
        (
            *("hardware.accelerators_per_node=2", "training.micro_batch_size=1"),
            *("training.prompts_per_step=2", "model.train_vision=true"),
        ),
    ],
    ids=["one process", "two processes", "two processes and a trained vision part"],
)
def test_a_rehearsal_trains_on_rows_of_no_one_and_two_pictures(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    start = vision_model("qwen2_vl", tmp_path / "start")
    leave_rows(tmp_path / "rows.jsonl")
    places = (
        *(f"model.path={start}", f"env.rows={tmp_path}/rows.jsonl", f"outputs={tmp_path}/outputs"),
        f"backend.runtime.python={sys.executable}",
    )
    done = subprocess.run(
        [sys.executable, "-m", "xp", *SMALL, *words, *places],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (run,) = (tmp_path / "outputs/runs").iterdir()
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert all(line["training/grad_norm"] > 0 for line in lines)
    assert all(line["training/logprob_gap"] < TOLERANCE for line in lines)
    assert all(line["episodes/void"] == 0 for line in lines)
    before = weights(start)
    after = weights(run / "model")
    changed = {name for name in before if not before[name].equal(after[name])}
    of_vision = {name for name in changed if "visual" in name}
    assert changed - of_vision
    assert bool(of_vision) == ("model.train_vision=true" in words)
