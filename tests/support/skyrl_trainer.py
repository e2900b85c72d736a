"""SkyRL's trainer on the CPU without its processes, a data set for it and records of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.scripts import ROW
from tests.support.tiny import tokenizer_and_model
from tests.trainers.skyrl_parts import native
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.train import write_view

SMALL = ("training.prompts_per_step=2", "training.group_size=4", "training.micro_batch_size=4")
ROWS = [replace(ROW, task_id=f"fake/train/{index}", index=index) for index in range(12)]


def dataset(path: Path) -> Any:
    from skyrl.train.dataset import PromptDataset

    write_view(ROWS, path)
    return PromptDataset([str(path)], tokenizer_and_model()[0], 820, num_workers=0)


def trainer(path: Path, config: SkyRLTrainStageConfig, tracker: Any = None, **changes: Any) -> Any:
    from xp.backends.skyrl.worker.trainer import XpTrainer
    from xp.episode.advantages import advantage_rule

    cfg = native(config)
    for key, value in changes.items():
        setattr(cfg.trainer.algorithm, key, value)
    made = XpTrainer(
        config,
        advantage_rule(config.spec.algorithm),
        None,
        cfg=cfg,
        tracker=tracker or SimpleNamespace(updated=lambda *_: None),
        tokenizer=tokenizer_and_model()[0],
        train_dataset=dataset(path / "train.parquet"),
        inference_engine_client=None,
        generator=None,
    )
    made.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    return made


def output(rewards: list[float | None]) -> dict[str, Any]:
    """SkyRL's record of one episode of three tokens for each reward; None is void."""
    num = len(rewards)
    return {
        "prompt_token_ids": [[10, 11]] * num,
        "response_ids": [[20, 40, 21]] * num,
        "rewards": [[0.0, 0.0, reward or 0.0] for reward in rewards],
        "loss_masks": [[0, 0, 0] if reward is None else [1, 0, 1] for reward in rewards],
        "stop_reasons": ["void" if reward is None else "stop" for reward in rewards],
        "rollout_logprobs": None,
    }


UIDS = ["0"] * 4 + ["1"] * 4


def without_updates(kind: Any) -> Any:
    """A class of SkyRL's trainers that update nothing."""

    class Trainer(kind):  # type: ignore[misc]
        def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
            training_input["values"] = None
            training_input["action_log_probs"] = training_input["rollout_logprobs"]
            return training_input

        def train_critic_and_policy(self, data: Any) -> Any:
            return {}

        def init_weight_sync_state(self) -> None: ...

        def save_models(self) -> None: ...

        def _cleanup_old_checkpoints(self) -> None:
            """Without SkyRL's call of Ray on each node."""

    return Trainer
