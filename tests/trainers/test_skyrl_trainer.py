"""SkyRL's own trainer, loader and estimators around xp's parts, without Ray."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")


from tests.support.episode_facts import logged
from tests.support.skyrl_trainer import ROWS, SMALL, UIDS, dataset, output, trainer
from tests.support.task_set import leave_manifest
from tests.trainers.skyrl_parts import train_config
from xp.envs.base import Message
from xp.episode.metrics_file import MetricsFile, read_metrics
from xp.errors import ExitCode, XpError
from xp.worker.played import SampledTask


def test_the_prepared_view_loads_in_skyrls_own_dataset(tmp_path: Path) -> None:
    found = dataset(tmp_path / "train.parquet")
    _, env_class, extras, _ = found[3]
    assert len(found) == len(ROWS)
    assert env_class == "xp"
    assert SampledTask.of_columns(extras) == SampledTask(
        "fake/train/3", "fake", "train", 3, "[]", (Message(role="user", content="play"),)
    )


def test_tasks_come_in_xps_order_where_skyrls_loader_would_shuffle_them(tmp_path: Path) -> None:
    from skyrl.train.utils.trainer_utils import build_dataloader

    made = trainer(
        tmp_path, train_config(*SMALL, "training.prompts_per_step=4", "training.num_steps=3")
    )
    order = [one["env_extras"]["task_id"] for batch in made.train_dataloader for one in batch]
    assert order == [row.task_id for row in ROWS]
    assert made.total_training_steps == 3
    shuffled = build_dataloader(made.cfg, made.train_dataset, is_train=True)
    assert [one["env_extras"]["task_id"] for batch in shuffled for one in batch] != order


def advantages(
    path: Path, rewards: list[float | None], uids: list[str], **changes: Any
) -> list[float]:
    """Through SkyRL's own conversion and estimators; the first token's, which all of an episode's share."""
    made = trainer(path, train_config(*SMALL), **changes)
    generated, uids = made.postprocess_generator_output(output(rewards), uids)
    data = made.convert_to_training_input(generated, uids)
    data["values"] = None
    found: list[float] = made.compute_advantages_and_returns(data)["advantages"][:, 0].tolist()
    return found


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "maxrl"])
def test_void_episodes_have_no_advantage_under_any_estimator(
    tmp_path: Path, estimator: str
) -> None:
    found = advantages(
        tmp_path,
        [None, None, None, None, 1.0, None, None, 0.0],
        UIDS,
        advantage_estimator=estimator,
    )
    assert [found[at] for at in (0, 1, 2, 3, 5, 6)] == [0.0] * 6
    assert found[4] > 0 > found[7]


def test_maxrl_refuses_a_negative_reward(tmp_path: Path) -> None:
    with pytest.raises(
        XpError, match="maxrl divides by the group's mean reward, and a reward is -1"
    ):
        advantages(
            tmp_path, [1.0, -1.0, None, None, 1.0, 0.0, 1.0, 0.0], UIDS, advantage_estimator="maxrl"
        )


def test_an_episode_that_is_alone_in_its_group_has_no_advantage(tmp_path: Path) -> None:
    """SkyRL gives a group of one a baseline of 0, so that the raw reward would be its advantage."""
    found = advantages(
        tmp_path,
        [None, 0.7, None, None, 1.0, 0.0, 1.0, 0.0],
        UIDS,
    )
    assert found[:4] == [0.0] * 4
    assert found[4] > 0 > found[5]


def test_the_minibatches_are_cut_by_prompt_as_if_nothing_were_void(tmp_path: Path) -> None:
    config = train_config(*SMALL, "training.updates_per_step=2")
    made = trainer(tmp_path, config)
    generated, uids = made.postprocess_generator_output(
        output([1.0, None, 0.0, 0.5, 0.2, 0.2, None, 0.2]), UIDS
    )
    data = made.convert_to_training_input(generated, uids)
    assert data.metadata["policy_mini_batch_boundaries"] == [(0, 4), (4, 8)]


class RecordedRun:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, record: Any) -> None:
        self.records.append(record)


def episode(reward: float | None) -> Any:
    played = logged(reward)
    return SimpleNamespace(
        played=lambda: played, trajectory=lambda run, phase, step: (run, phase, step)
    )


def step_log(path: Path, *overrides: str) -> tuple[Any, RecordedRun]:
    from xp.backends.skyrl.worker.steps import SkyRLStepLog

    recorded: Any = RecordedRun()
    config = train_config(*overrides)
    tasks = str(leave_manifest(path / "tasks"))
    config = replace(config, places=replace(config.places, run=str(path), tasks=tasks))
    return SkyRLStepLog(config, MetricsFile(path / "metrics.jsonl", "train", 1), recorded), recorded


def test_a_step_with_too_many_void_episodes_has_its_code(tmp_path: Path) -> None:
    log, recorded = step_log(tmp_path, "training.max_void_fraction=0.25")
    with pytest.raises(XpError, match="2 of 4 episodes are void") as caught:
        log.episodes(
            [episode(1.0), episode(1.0), episode(None), episode(None)],
            1,
            1.0,
        )
    assert caught.value.code is ExitCode.UNHEALTHY
    assert len(recorded.records) == 4


def test_a_step_is_one_line_under_xps_names(tmp_path: Path) -> None:
    log, recorded = step_log(tmp_path, "training.group_size=2", "training.micro_batch_size=4")
    log.episodes([episode(1.0), episode(0.0)], 1, 2.5)
    log.log(
        {
            "policy/final_loss": 0.5,
            "policy/grad_norm": 0.1,
            "timing/step": 3.0,
            "reward/avg_raw_reward": 9.0,
        },
        1,
    )
    (line,) = read_metrics(tmp_path / "metrics.jsonl", "train")
    assert line["reward/avg_raw_reward"] == 0.5
    assert line["reward/avg_pass_at_2"] == 1.0
    assert line["training/loss"] == 0.5
    assert line["training/grad_norm"] == 0.1
    assert line["time/rollout_s"] == 2.5
    assert line["time/step_s"] == 3.0
    assert line["training/tokens"] == 14
    assert [step for _, _, step in recorded.records] == [0, 0]


def test_skyrl_ends_in_time_after_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    log, _ = step_log(
        tmp_path, "training.max_hours=0.0001", "training.checkpoint_every=2", "training.num_steps=6"
    )
    native = {"policy/final_loss": 0.5, "policy/grad_norm": 0.1, "timing/step": 3.0}
    log.episodes([episode(1.0), episode(0.0)], 1, 2.5)
    log.log(native, 1)
    log.episodes([episode(1.0), episode(0.0)], 2, 2.5)
    with pytest.raises(XpError, match="ends after step 2") as caught:
        log.log(native, 2)
    assert caught.value.code is ExitCode.LIMIT
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl", "train")] == [1, 2]


@pytest.mark.parametrize(
    ("loaded", "step"),
    [((2, "c"), 2), ((3, "c", {"a", "b", "c", "d"}, set(), 0), 2), ((0, None), 0)],
)
def test_a_resumed_training_has_its_metrics_file_again_if_that_was_lost(
    tmp_path: Path, loaded: tuple[Any, ...], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    from skyrl.train.trainer import RayPPOTrainer

    from xp.backends.skyrl.worker.async_rollouts import AsyncTrainer
    from xp.backends.skyrl.worker.trainer import XpTrainer

    kind, native_kind = (
        (XpTrainer, RayPPOTrainer) if len(loaded) == 2 else (AsyncTrainer, FullyAsyncRayPPOTrainer)
    )
    monkeypatch.setattr(native_kind, "load_checkpoints", lambda _: loaded)
    found = object.__new__(kind)
    found._curriculum = None
    found.tracker, _ = step_log(tmp_path)
    found.cfg = SimpleNamespace(trainer=SimpleNamespace(train_batch_size=2))
    found.total_training_steps = 24
    assert found.load_checkpoints() == (step, *loaded[1:])
    lines = read_metrics(tmp_path / "metrics.jsonl", "train")
    assert [line["step"] for line in lines] == ([step] if step else [])


@pytest.mark.parametrize("network", ["policy", "critic"])
def test_an_update_that_is_not_finite_stops_the_run_before_its_checkpoint(
    tmp_path: Path, network: str
) -> None:
    log, _ = step_log(tmp_path)
    log.updated(network, {"final_loss": 0.5, "grad_norm": 0.1}, 1)
    with pytest.raises(
        XpError, match=f"rollout step 2: gradient norm of the {network} nan"
    ) as caught:
        log.updated(network, {"final_loss": 0.5, "grad_norm": math.nan}, 2)
    assert caught.value.code is ExitCode.DIVERGED


def test_skyrls_model_imports_without_flash_attention_and_without_traces() -> None:
    from importlib.util import find_spec

    from xp.backends.skyrl.worker.process import prepare_process

    if find_spec("flash_attn") is not None:
        pytest.skip("flash-attn is installed here")
    prepare_process()
    from skyrl.backends.skyrl_train.workers import model_wrapper
    from transformers.utils import is_flash_attn_2_available

    assert find_spec("flash_attn") is None
    assert not is_flash_attn_2_available()
    with pytest.raises(RuntimeError, match=r"set backend\.attention=sdpa"):
        model_wrapper.unpad_input()


def test_an_evaluation_while_training_has_a_line_of_its_own(tmp_path: Path) -> None:
    log, recorded = step_log(tmp_path, "evaluation.every=2")
    log.held_out([episode(1.0), episode(0.0)], 2)
    (line,) = read_metrics(tmp_path / "metrics.jsonl", "evaluate_during")
    assert line["step"] == 2
    assert line["evaluation/during/reward/avg_raw_reward"] == 0.5
    assert [phase for _, phase, _ in recorded.records] == ["evaluate/during"] * 2
    with pytest.raises(XpError, match="1 of 2 episodes are void"):
        log.held_out([episode(1.0), episode(None)], 4)


def test_batches_that_dynamic_sampling_threw_away_are_in_the_steps_line(tmp_path: Path) -> None:
    log, _ = step_log(tmp_path, "training.group_size=2", "training.micro_batch_size=4")
    log.episodes([episode(0.0), episode(0.0)], 1, 1.0)
    log.episodes([episode(1.0), episode(0.0)], 1, 1.0)
    log.log({"timing/step": 3.0}, 1)
    (line,) = read_metrics(tmp_path / "metrics.jsonl", "train")
    assert line["episodes/num"] == 4.0
    assert line["reward/avg_raw_reward"] == 0.25
    assert line["time/rollout_s"] == 2.0


def test_a_later_attempt_goes_on_counting_tokens(tmp_path: Path) -> None:
    for step in (1, 2):
        log, _ = step_log(tmp_path, "training.group_size=2", "training.micro_batch_size=4")
        log.episodes([episode(1.0), episode(0.0)], step, 1.0)
        log.log({"timing/step": 3.0}, step)
    assert [
        line["training/tokens"] for line in read_metrics(tmp_path / "metrics.jsonl", "train")
    ] == [14.0, 28.0]


@pytest.mark.parametrize("schedule", ["constant_with_warmup", "linear", "cosine"])
def test_xps_warm_up_begins_above_0_where_skyrls_begins_at_0(schedule: str) -> None:
    import torch
    from skyrl.backends.skyrl_train.distributed import fsdp_strategy

    from xp.backends.skyrl.worker.workers import xp_schedules

    def rates() -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        made = fsdp_strategy.get_scheduler(
            schedule, optimizer, num_warmup_steps=4, num_training_steps=8
        )
        found = []
        for _ in range(8):
            found.append(made.get_last_lr()[0])
            optimizer.step()
            made.step()
        return found

    assert rates()[0] == 0
    with xp_schedules(SimpleNamespace(min_lr=0.5)):
        found = rates()
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:] == sorted(found[4:], reverse=True)
    assert found[-1] >= 0.5
    assert rates()[0] == 0


def test_skyrls_own_check_and_removal_ignore_directories_of_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.train.utils import trainer_utils

    from xp.backends.skyrl.worker import trainer as own
    from xp.backends.skyrl.worker.checkpoints import hide_other_directories

    monkeypatch.setattr(trainer_utils, "list_checkpoint_dirs", trainer_utils.list_checkpoint_dirs)
    for name in ("global_step_1", "global_step_2", "global_step_3.bad"):
        (tmp_path / name).mkdir()
    check = trainer_utils.validate_consistency_for_latest_checkpoint
    with pytest.raises(ValueError, match="invalid literal"):
        check(str(tmp_path), 2, "", "", 1)
    hide_other_directories()
    check(str(tmp_path), 2, "", "", 1)
    on_nodes: list[Any] = []
    monkeypatch.setattr(
        own, "run_on_each_node", lambda nodes, *call: on_nodes.append((nodes, *call))
    )
    found = object.__new__(own.XpTrainer)
    found._node_ids = None
    found.dispatch = SimpleNamespace(get_node_ids=lambda: ["node"])
    found.cfg = SimpleNamespace(
        trainer=SimpleNamespace(ckpt_path=str(tmp_path), max_ckpts_to_keep=1)
    )
    found._cleanup_old_checkpoints()
    assert {path.name for path in tmp_path.iterdir()} == {"global_step_2", "global_step_3.bad"}
    assert on_nodes == [(["node"], own.prune, str(tmp_path), 1)]
