"""Runs Slime's train.py on the mixture of environments: `python -m xp.backends.slime.worker.train <config.json>`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xp.backends.slime.worker.config import (
    HELD_OUT_VIEW,
    INPUT_KEY,
    METADATA_KEY,
    ROLES,
    TASK_VIEW,
    TOOL_KEY,
    SlimeTrainConfig,
    WorkerConfig,
)
from xp.backends.slime.worker.models import (
    check_architecture,
    check_quantized,
    local_model,
    publish_model,
)
from xp.backends.slime.worker.program import run_train
from xp.backends.slime.worker.sources import open_sources
from xp.episode.advantages import load_advantage_fn
from xp.episode.tokens import ChatTokens
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.reading import config_of
from xp.lib.secrets.environment import with_secrets_file
from xp.spec import Evaluation, Training
from xp.tasks.row import TaskRow
from xp.tasks.schedule import evaluated_tasks
from xp.worker.best import BestKeeper, EarlyStop
from xp.worker.engines.teacher import check_teacher
from xp.worker.learning_rate import first_rate
from xp.worker.program import run_stage
from xp.worker.slime_names import warm_up_too_long
from xp.worker.tasks import held_out_tasks, policy_chat
from xp.worker.training import TrainingProgram


def main(argv: Sequence[str]) -> None:
    """Runs the training of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SlimeTrainConfig.from_json)
    root = Path.cwd()
    spec = config.spec
    training = spec.training
    if spec.algorithm.advantage_fn is not None:
        # A fault in it ends the stage here, and not after a step.
        load_advantage_fn(spec.algorithm.advantage_fn)
    open_sources(config.command)
    model = local_model(config.start_model, root)
    check_architecture(model, config.architecture)
    quantized = spec.backend.engine.quantized_model
    if quantized is not None:
        check_quantized(local_model(quantized, root), config.architecture)
    if spec.algorithm.distill is not None:
        check_teacher(spec.algorithm.distill, str(model), with_secrets_file())
    program = TrainingProgram.begin(path, SlimeTrainConfig.from_json)
    config = program.config
    check_warm_up(config)
    chat = write_views(program, model)
    checkpoints = config.checkpoints_in(root)
    latest = checkpoints.choose_latest()
    if checkpoints.critic_directory is not None:
        roles = critic_role(training, checkpoints.critic_directory, is_resumed=latest is not None)
        write_atomically(path.parent / ROLES, json.dumps(roles) + "\n")
    if latest is None:
        config = config.from_the_start()
    else:
        config = config.resumed(latest, checkpoints.whole())
        print(f"continuing from rollout step {latest + 1} of {config.num_steps}", flush=True)
    last = train(config, root, latest)
    checkpoints.seal_exports(chat.end_ids, chat.template)
    model_place = root / config.places.model
    publish_model(checkpoints.exports / str(last), model_place, chat.end_ids, chat.template)
    checkpoints.prune(training.keep_checkpoints)
    program.check()


def train(config: SlimeTrainConfig, root: Path, latest: int | None) -> int:
    """Runs the rest of the training after the checkpoint `latest`; returns the rollout id of its last step."""
    stop = None
    if latest is not None:
        config.metrics_file("train", root).continue_after(latest + 1)
        keeper = BestKeeper.of(config, root)
        if keeper is not None:
            stop = keeper.stop(latest + 1)
        if stop is None and latest + 1 >= config.num_steps:
            return config.num_steps - 1
    try:
        if stop is not None:
            raise stop
        run_train(config.command, WorkerConfig.of(config, root, config.num_steps))
    except EarlyStop as why:
        print(why, flush=True)
        last = config.checkpoints_in(root).choose_latest()
        # The evaluated step has a checkpoint, by the refusals of evaluation.patience.
        assert last is not None
        return last
    return config.num_steps - 1


def check_warm_up(config: SlimeTrainConfig) -> None:
    """Raises XpError(PLAN) for a warm-up longer than the training, before Megatron would after the first episodes."""
    training = config.spec.training
    updates = config.num_steps * training.updates_per_step
    if training.warmup_updates > updates:
        raise XpError(f"training.warmup_updates: {warm_up_too_long(updates)}", ExitCode.PLAN)


def write_views(program: TrainingProgram[SlimeTrainConfig], model: Path) -> ChatTokens:
    """Writes Slime's prompt data in xp's order, and its held-out data; returns the policy's tokenizer."""
    config = program.config
    chat = policy_chat(config, model, program.stage)
    view = program.stage / TASK_VIEW
    write_view(program.view(model, chat, view), view)
    if config.evaluation is not None:
        held_out = held_out_tasks(config, program.stage, chat)
        write_episodes(held_out, config.spec.evaluation, program.stage / HELD_OUT_VIEW)
    return chat


def critic_role(training: Training, directory: Path, *, is_resumed: bool) -> Mapping[str, Any]:
    """Entry of Slime's critic for --megatron-config-path; other settings are those of the policy's command line.

    A critic that is not resumed starts with the policy's initial weights and a new output layer.
    """
    checkpoints = str(directory.absolute())
    rate = training.critic_learning_rate or training.learning_rate
    overrides = {"lr": rate, "save": checkpoints, **({"load": checkpoints} if is_resumed else {})}
    overrides |= {"lr_warmup_init": first_rate(rate, training.warmup_updates)}
    return {"megatron": [{"name": "default", "role": "critic", "overrides": overrides}]}


def slime_line(row: TaskRow) -> dict[str, Any]:
    """One line of Slime's prompt data."""
    return {
        INPUT_KEY: [dict(message) for message in row.messages],
        TOOL_KEY: json.loads(row.tools),
        METADATA_KEY: {
            "task_id": row.task_id,
            "env": row.env,
            "split": row.split,
            "index": row.index,
        },
    }


def write_view(rows: Iterable[TaskRow], path: Path) -> None:
    """Writes the JSONL file of these rows."""
    _write(map(slime_line, rows), path)


def write_episodes(rows: Sequence[TaskRow], evaluation: Evaluation, path: Path) -> None:
    """Writes a view with every task once per round; `sample` in the metadata is the index of the task's episode."""
    lines = []
    for number in range(evaluation.samples_per_task):
        for row in evaluated_tasks(evaluation, rows):
            line = slime_line(row)
            line[METADATA_KEY]["sample"] = number
            lines.append(line)
    _write(lines, path)


def _write(lines: Iterable[dict[str, Any]], path: Path) -> None:
    """Writes the JSONL file atomically."""
    write_atomically(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
