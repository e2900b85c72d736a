"""Groups with pictures that SkyRL's own workers play ahead of the update, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.gallery import Gallery
from tests.support.skyrl_pictures import LIMITS, update_logprobs
from tests.support.tiny_vision import IMAGES, seeing_chat, vision_model
from tests.trainers.skyrl_parts import AHEAD, native, train_config
from xp.backends.skyrl.worker.generator import XpGenerator
from xp.backends.skyrl.worker.pictures import SkyRLPictures
from xp.backends.skyrl.worker.prompts import UncountedPrompts
from xp.backends.skyrl.worker.rehearsal.engine import CpuEngine
from xp.backends.skyrl.worker.train import write_view
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs import picture_store
from xp.envs.picture_store import PictureStore

TOLERANCE = 1e-5
PROMPTS = 3
SHOWN = (("a", "b"), ("", "c"), ("", ""), ("", ""), ("d", "e"), ("", "f"))
"""Of the groups of two steps: two, one and no pictures."""


def trainer(model: Path, directory: Path) -> Any:
    """xp's trainer that plays ahead, with the rehearsal's engine and environments that show pictures."""
    from skyrl.train.dataset import PromptDataset

    from xp.backends.skyrl.worker.async_rollouts import AsyncTrainer

    words = ("training.max_staleness=1", "training.num_steps=2", "training.micro_batch_size=3")
    config = train_config(*LIMITS, *AHEAD, f"model.path={model}", *words)
    store = PictureStore(directory / "pictures")
    gallery: Any = Gallery(store, SHOWN)
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    engine = CpuEngine(str(model), directory / "weights", 1, IMAGES)
    cfg = native(config)
    seen = SkyRLPictures(chat.pictures, None, "model")
    view = directory / "train.parquet"
    write_view(gallery.rows(), view)
    made = AsyncTrainer(
        config,
        None,
        None,
        cfg=cfg,
        tracker=SimpleNamespace(episodes=lambda *_: None),
        tokenizer=chat.tokenizer,
        train_dataset=PromptDataset([str(view)], UncountedPrompts(), 820, num_workers=0),
        inference_engine_client=None,
        generator=XpGenerator(cfg, engine, chat, gallery, config.spec, seen),
    )
    made.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    made.all_timings = {}
    return made


async def two_steps(made: Any) -> tuple[list[Any], list[int]]:
    """SkyRL's batch of each step, and the largest age of its groups in steps."""
    made.global_step = 1
    buffer: asyncio.Queue[Any] = asyncio.Queue(2 * PROMPTS)
    play = made._run_generate_for_a_group_loop
    workers = [asyncio.create_task(play(buffer)) for _ in range(2 * PROMPTS)]
    batches = []
    ages = []
    for _ in range(2):
        groups, *_ = await asyncio.wait_for(
            made._collect_generation_mini_batch(buffer, asyncio.Event()), DEADLINE_S
        )
        ages.append(made.global_step - min(group.global_step_when_scheduled for group in groups))
        batches.append(made.convert_generation_group_mini_batch_to_training_input(groups))
        await made.async_train_dataloader.mark_consumed_uids([group.uid for group in groups])
        made.global_step += 1
        await made._staleness_manager.notify_capacity_change(made.global_step)
    await asyncio.wait_for(asyncio.gather(*workers), DEADLINE_S)
    return batches, ages


def test_groups_that_are_played_ahead_keep_the_pixels_of_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    model = vision_model("qwen2_vl", tmp_path / "model")
    batches, ages = asyncio.run(two_steps(trainer(model, tmp_path)))
    assert ages == [0, 1]
    numbers = [[len(grid) for grid in batch["image_grid_thw"]] for batch in batches]
    assert numbers == [[2, 2, 1, 1, 0, 0], [0, 0, 2, 2, 1, 1]]
    for batch in batches:
        logprobs = update_logprobs(model, batch, 3)
        gap = (logprobs - batch["rollout_logprobs"])[batch["loss_mask"] > 0]
        assert gap.abs().max() < TOLERANCE
