"""Runs TRL's GRPOTrainer on the mix of environments: `python -m xp.backends.trl.train <config.json>`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.backends.trl.config import TrainConfig
from xp.backends.trl.process import quiet_trainer
from xp.backends.trl.publish import publish_model
from xp.backends.trl.tasks_view import trl_rows
from xp.episode.metrics_file import MetricsFile
from xp.episode.mix import Mix
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.stage_program import run_stage
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.schedule import schedule

if TYPE_CHECKING:
    from xp.backends.trl.rollout import Rollouts
    from xp.backends.trl.steps import StepLog


def main(argv: Sequence[str]) -> None:
    """Train as the config file says, from the last complete checkpoint where there is one."""
    path = Path(argv[0])
    config = TrainConfig.from_json(path.read_text())
    rows = load_tasks(Path(config.common.tasks), path.parent, "train")

    from transformers import AutoTokenizer, set_seed

    quiet_trainer(config.common.num_threads)
    set_seed(config.common.sampling.seed)
    tokenizer = AutoTokenizer.from_pretrained(config.base_model)
    chat = ChatTokens(tokenizer, config.common.chat_template)
    kept = within_limit(Path(config.common.tasks), rows, chat, config.common.sampling.max_prompt_tokens)
    order = schedule(
        kept, config.num_steps * config.prompts_per_step, seed=config.common.sampling.seed, shuffle=config.shuffle
    )

    from xp.backends.trl.rollout import Rollouts
    from xp.backends.trl.steps import StepLog

    trajectories = path.parent / "trajectories" / "train.jsonl"
    with (
        Mix.from_file(path.with_name("episode.json"), os.environ) as mix,
        Recorder(trajectories, mix, config.common.upload_as, os.environ) as recorder,
    ):
        log = StepLog(config, MetricsFile(Path(config.common.metrics), "train", config.common.attempt))
        rollouts = Rollouts(config, chat, {row.task_id: row for row in order}, mix, log, recorder)
        trainer = _trainer(config, tokenizer, order, log, rollouts)
        checkpoint = latest_checkpoint(Path(config.grpo["output_dir"]))
        if checkpoint is not None:
            print(f"going on from {checkpoint}", flush=True)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        log.finish()
    publish_model(trainer.model, tokenizer, Path(config.model_dir))


def _trainer(config: TrainConfig, tokenizer: Any, order: Sequence[Any], log: StepLog, rollouts: Rollouts) -> Any:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(config.base_model, dtype=getattr(torch, config.common.dtype))
    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**config.grpo),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(trl_rows(order)),
        rollout_func=rollouts,
        reward_funcs=settled_reward,
        callbacks=[log.callback()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def settled_reward(settled: list[float | None], **_: Any) -> list[float | None]:
    """The Outcomes' rewards, as the rollout function handed them over; None (void) leaves the group's baseline."""
    return settled


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that is whole. TRL writes trainer_state.json last, so a torn one has none."""
    whole = [path for path in directory.glob("checkpoint-*") if (path / "trainer_state.json").is_file()]
    return max(whole, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
