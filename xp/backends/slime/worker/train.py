"""Runs Slime's train.py on the mixture of environments: `python -m xp.backends.slime.worker.train <config.json>`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from xp.backends.slime.worker.checkpoints import choose_latest, prune, put_position, seal_exports
from xp.backends.slime.worker.config import (
    HELD_OUT_VIEW,
    INPUT_KEY,
    METADATA_KEY,
    ROLES,
    TASK_VIEW,
    TOOL_KEY,
    CriticConfig,
    SlimeTrainConfig,
    WorkerConfig,
    warm_up_start,
    warm_up_too_long,
)
from xp.backends.slime.worker.models import check_architecture, local_model, publish_model
from xp.backends.slime.worker.program import run_train
from xp.backends.slime.worker.sources import open_sources
from xp.engines.config import EvaluateConfig
from xp.engines.teacher import check_teacher
from xp.envs.secrets_file import environment
from xp.episode.advantages import load_advantage_fn
from xp.episode.metrics_file import MetricsFile
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.reading import config_of
from xp.tasks.evaluated import Rounds
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.tasks.training_length import settle
from xp.worker.best import BestKeeper, EarlyStop
from xp.worker.facts import record_facts
from xp.worker.program import run_stage
from xp.worker.tasks import held_out_tasks, policy_chat, training_view
from xp.worker.trained import check_trained


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SlimeTrainConfig.from_json)
    root = Path.cwd()
    if config.advantage_fn is not None:
        load_advantage_fn(config.advantage_fn)  # a fault in it ends the stage here, and not after a step of episodes
    open_sources(config.command)
    model = local_model(config.start_model, root)
    check_architecture(model, config.architecture)
    if config.distill is not None:
        check_teacher(config.distill, str(model), environment())
    rows = load_tasks(Path(config.common.tasks), path.parent, "train")
    config = config.with_length(settle(config.length, len(rows), config.prompts_per_step, path.parent))
    check_warm_up(config)
    end_ids = write_views(config, path.parent, model, rows).end_ids
    critic = _critic_place(config, root)
    latest = choose_latest(root / config.checkpoints, critic)
    if config.critic is not None:
        roles = critic_role(config.critic, root, config.warmup_updates, is_resumed=latest is not None)
        write_atomically(path.parent / ROLES, json.dumps(roles) + "\n")
    if latest is None:
        config = config.from_the_start()
    else:
        print(f"going on from rollout step {latest + 1} of {config.num_steps}", flush=True)
        if config.max_staleness:
            put_position(root / config.checkpoints, latest, config.prompts_per_step, config.group_size)
    last = train(config, root, latest)
    seal_exports(root / config.checkpoints, root / config.exports, end_ids, critic)
    publish_model(root / config.exports / str(last), root / config.model_dir, end_ids)
    prune(root / config.checkpoints, root / config.exports, config.keep_checkpoints, critic)
    check_trained("train", config.common, config.num_steps, config.start_model, config.model_dir, config.best)


def train(config: SlimeTrainConfig, root: Path, latest: int | None) -> int:
    """Runs the rest of the training after the checkpoint `latest`; returns the rollout id of its last step."""
    if latest is not None:
        MetricsFile(root / config.common.metrics, "train", config.common.attempt).continue_after(latest + 1)
    keeper = None if config.best is None else BestKeeper(config.best, root)
    stop = None if keeper is None or latest is None else keeper.stop(latest + 1)
    if stop is None and latest is not None and latest + 1 >= config.num_steps:
        return config.num_steps - 1
    try:
        if stop is not None:
            raise stop
        run_train(config.command, worker_config(config, root))
    except EarlyStop as why:
        print(why, flush=True)
        last = choose_latest(root / config.checkpoints, _critic_place(config, root))
        assert last is not None  # the evaluated step has a checkpoint, by the rows of evaluation.patience
        return last
    return config.num_steps - 1


def check_warm_up(config: SlimeTrainConfig) -> None:
    """Raises XpError(PLAN) for a warm-up longer than the training, before Megatron would after the first episodes."""
    updates = config.num_steps * config.updates_per_step
    if config.warmup_updates > updates:
        raise XpError(f"training.warmup_updates: {warm_up_too_long(updates)}", ExitCode.PLAN)


def write_views(config: SlimeTrainConfig, stage: Path, model: Path, rows: Sequence[TaskRow]) -> ChatTokens:
    """Writes Slime's prompt data in xp's order, and its held-out data; returns the policy's tokenizer."""
    common, limit = config.common, config.common.limits.max_prompt_tokens
    chat = policy_chat(common, model, stage)
    record_facts(common, model, stage, chat, config.distill)
    tasks, view = within_limit(Path(common.tasks), rows, chat, limit), stage / TASK_VIEW
    write_view(training_view(config, tasks, view, common.seed), view)
    if config.evaluation is not None:
        held_out = held_out_tasks(common, stage, chat, limit)
        eval_config = config_of(Path(config.evaluation), EvaluateConfig.from_json)
        write_episodes(held_out, eval_config.rounds, stage / HELD_OUT_VIEW)
    return chat


def critic_role(critic: CriticConfig, root: Path, warmup_updates: int, *, is_resumed: bool) -> Mapping[str, Any]:
    """Entry of Slime's critic for --megatron-config-path; other settings are those of the policy's command line.

    A critic that is not resumed starts with the policy's initial weights and a new output layer.
    """
    checkpoints = str((root / critic.checkpoints).absolute())
    overrides = {"lr": critic.learning_rate, "save": checkpoints, **({"load": checkpoints} if is_resumed else {})}
    overrides |= {"lr_warmup_init": warm_up_start(critic.learning_rate, warmup_updates)}
    return {"megatron": [{"name": "default", "role": "critic", "overrides": overrides}]}


def worker_config(config: SlimeTrainConfig, root: Path) -> WorkerConfig:
    """The configuration for Slime's processes, with the training's values of the same names."""
    others = ("root", "phase", "critic_checkpoints")
    shared = {one.name: getattr(config, one.name) for one in fields(WorkerConfig) if one.name not in others}
    critic = None if config.critic is None else config.critic.checkpoints
    return WorkerConfig(root=str(root.absolute()), phase="train", critic_checkpoints=critic, **shared)


def _critic_place(config: SlimeTrainConfig, root: Path) -> Path | None:
    return None if config.critic is None else root / config.critic.checkpoints


def slime_line(row: TaskRow) -> dict[str, Any]:
    """One line of Slime's prompt data."""
    return {
        INPUT_KEY: [dict(message) for message in row.messages],
        TOOL_KEY: json.loads(row.tools),
        METADATA_KEY: {"task_id": row.task_id, "env": row.env, "split": row.split, "index": row.index},
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> int:
    """Writes the JSONL file atomically; returns the number of lines."""
    return _write(map(slime_line, rows), path)


def write_episodes(rows: Sequence[TaskRow], rounds: Rounds, path: Path) -> int:
    """Writes a view with every task once per round; `sample` in the metadata is the index of the task's episode."""
    lines = (
        {**slime_line(row), METADATA_KEY: {**slime_line(row)[METADATA_KEY], "sample": number}}
        for number in range(rounds.samples_per_task)
        for row in rounds.tasks(rows)
    )
    return _write(lines, path)


def _write(lines: Iterable[dict[str, Any]], path: Path) -> int:
    texts = [json.dumps(line, ensure_ascii=False) + "\n" for line in lines]
    write_atomically(path, "".join(texts))
    return len(texts)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
