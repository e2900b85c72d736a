"""SkyRL's own generating workers and slots around xp's trainer that plays ahead, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.skyrl_trainer import SMALL, dataset
from tests.support.tiny import tokenizer_and_model
from tests.trainers.skyrl_parts import AHEAD, native, train_config
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.episode.advantages import advantage_rule

PROMPTS = 2


class SlowGroups:
    """A generator whose first group of each step ends long after the others have begun and ended."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.chat = SimpleNamespace(end_ids=(0,), template=None)

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        uid = input_batch["trajectory_ids"][0].instance_id
        self.begun.append(uid)
        for _ in range(200 if int(uid) % PROMPTS == 0 else 1):
            await asyncio.sleep(0)
        return {"rewards": [], "stop_reasons": []}

    def played(self, input_batch: Any) -> list[Any]:
        return []


def trainer(path: Path, staleness: int) -> Any:
    from xp.backends.skyrl.worker.async_rollouts import AsyncTrainer

    config = train_config(
        *SMALL, *AHEAD, f"training.max_staleness={staleness}", "training.num_steps=6"
    )
    made = AsyncTrainer(
        config,
        advantage_rule(config.spec.algorithm),
        None,
        cfg=native(config),
        tracker=SimpleNamespace(updated=lambda *_: None, episodes=lambda *_: None),
        tokenizer=tokenizer_and_model()[0],
        train_dataset=dataset(path / "train.parquet"),
        inference_engine_client=None,
        generator=SlowGroups(),
    )
    made.all_timings = {}
    return made


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_step_has_xps_groups_within_the_age_limit(tmp_path: Path, staleness: int) -> None:
    made = trainer(tmp_path, staleness)

    async def train() -> tuple[list[list[str]], list[int]]:
        buffer: asyncio.Queue[Any] = asyncio.Queue(PROMPTS * (staleness + 1))
        made.global_step = 1
        workers = [
            asyncio.create_task(made._run_generate_for_a_group_loop(buffer))
            for _ in range(PROMPTS * (staleness + 1))
        ]
        steps = []
        ages = []
        for _ in range(6):
            groups, dropped, is_exhausted = await made._collect_generation_mini_batch(
                buffer, asyncio.Event()
            )
            assert (dropped, is_exhausted) == ([], False)
            steps.append([group.uid for group in groups])
            ages.append(
                max(made.global_step - group.global_step_when_scheduled for group in groups)
            )
            await asyncio.sleep(0.01)  # an update
            await made.async_train_dataloader.mark_consumed_uids(steps[-1])
            made.global_step += 1
            await made._staleness_manager.notify_capacity_change(made.global_step)
        await asyncio.wait_for(asyncio.gather(*workers), DEADLINE_S)
        await made._staleness_manager.validate_state_at_epoch_end(made.global_step)
        return steps, ages

    steps, ages = asyncio.run(train())
    assert steps == [[str(PROMPTS * step + at) for at in range(PROMPTS)] for step in range(6)]
    assert max(ages) <= staleness
    assert ages[0] == 0
    assert ages[-1] > 0


class Writing:
    """SkyRL's dispatch, whose workers' files are empty."""

    def __init__(self) -> None:
        self.models: list[str] = []

    def save_checkpoint(self, role: str, directory: str, tokenizer: Any) -> None:
        Path(directory).mkdir(parents=True)

    def save_hf_model(self, role: str, directory: str, tokenizer: Any) -> None:
        Path(directory).mkdir(parents=True)
        self.models.append(Path(directory).parent.name)


@pytest.mark.parametrize("stopped_after", [None, 3])
def test_the_last_step_is_saved_once_under_its_own_number(
    tmp_path: Path, stopped_after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.train.utils.trainer_utils import cleanup_old_checkpoints

    made = trainer(tmp_path, 1)
    settings = made.cfg.trainer
    settings.ckpt_path = str(tmp_path / "checkpoints")
    settings.export_path = str(tmp_path / "exports")
    settings.max_ckpts_to_keep = 2
    made.dispatch = Writing()
    made.epoch = 0
    monkeypatch.setattr(
        made, "_cleanup_old_checkpoints", lambda: cleanup_old_checkpoints(settings.ckpt_path, 2)
    )
    for step in range(1, 1 + (stopped_after or settings.max_training_steps)):
        made.global_step = step
        # A training that stops early does so at any step, without a checkpoint of it.
        if step != stopped_after:
            made.save_checkpoints()
            made.save_models()
    last = made.global_step
    settings.max_training_steps = last
    made.global_step += 1  # as SkyRL counts after the last one
    made.save_checkpoints()
    made.save_models()
    assert {path.name for path in (tmp_path / "checkpoints").glob("global_step_*")} == {
        f"global_step_{step}" for step in (last - 1, last)
    }
    assert (tmp_path / "checkpoints/latest_ckpt_global_step.txt").read_text() == str(last)
    assert made.dispatch.models == [f"global_step_{step}" for step in range(1, 1 + last)]
    assert made.global_step == last + 1
