"""RunSpec -> fields of stage configs and jobs that are the same on every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from xp.job import Job, Stage
from xp.planning.backend import RunPaths
from xp.planning.stages.episode import chat_of, episode_config
from xp.planning.stages.evaluation import live_rules
from xp.planning.stages.model import model_place, start_place
from xp.planning.stages.prepare import prepare_config, profiles
from xp.spec import RunSpec
from xp.tasks.training_length import Length
from xp.worker.curriculum import Refresh


def stage_fields(spec: RunSpec, places: RunPaths, stage: str) -> dict[str, Any]:
    """Fields of an xp.worker.stage.StageConfig."""
    training = spec.training
    return {
        "attempt": places.attempt,
        "run": places.run,
        "stage_dir": places.stage(stage),
        "tasks": places.tasks,
        "metrics": places.metrics,
        "chat": chat_of(spec),
        "max_void_fraction": training.max_void_fraction,
        "pass_threshold": spec.evaluation.pass_threshold,
        "on_nonfinite": training.on_nonfinite.value,
        "max_logprob_gap": training.max_logprob_gap,
        "upload_as": places.run.removeprefix("runs/") if spec.upload_rollouts else None,
    }


def sampling_fields(spec: RunSpec, temperature: float) -> dict[str, Any]:
    """Fields of an xp.worker.stage.Sampling."""
    training = spec.training
    names = ("top_p", "top_k", "max_prompt_tokens", "max_tokens_per_turn", "max_response_tokens")
    return {"temperature": temperature, **{name: getattr(training, name) for name in names}, "seed": spec.seed}


def train_fields(spec: RunSpec, places: RunPaths) -> dict[str, Any]:
    """Fields of an xp.worker.stage.TrainConfig, without `common`."""
    training = spec.training
    return {
        "base_model": model_place(spec.model),
        "initial_checkpoint": training.initial_checkpoint,
        "model_dir": places.model,
        "length": Length(training.num_steps, training.epochs),
        "prompts_per_step": training.prompts_per_step,
        "group_size": training.group_size,
        "max_staleness": training.max_staleness,
        "shuffle": training.shuffle,
        "mask_truncated": spec.algorithm.mask_truncated,
        "symptoms": live_rules(spec),
        "refresh": _refresh(spec),
    }


def _refresh(spec: RunSpec) -> dict[str, Refresh]:
    """Rules of the environments whose tasks are selected again during training."""
    found = {}
    for name, profile in profiles(spec).items():
        train = spec.env.members[name].train
        if train.refresh_every is not None and train.pass_rate is not None:
            rates = {str(index): rate for index, rate in profile.rates.items()}
            found[name] = Refresh(train.refresh_every, *train.pass_rate, train.easy_first, rates)
    return found


def episode_files(spec: RunSpec, here: str) -> dict[str, str]:
    """Files that every stage with episodes reads.

    Args:
        here: directory of the stage.
    """
    return {
        f"{here}/episode.json": episode_config(spec).to_json(),
        f"{here}/prepare.json": prepare_config(spec).to_json(),
    }


Evaluation = Callable[[RunSpec, RunPaths, Mapping[str, str], tuple[str, ...]], Stage]


def train_and_evaluate(
    spec: RunSpec, places: RunPaths, made: tuple[Stage, ...], job: Job, evaluation: Evaluation
) -> tuple[Stage, ...]:
    """Stages after the preparation of tasks.

    Args:
        made: stages that make the inputs of the training.
        job: job of the training.
        evaluation: makes the backend's evaluation stage, which is used if tasks are held out.
    """
    train = Stage("train", job, needs=("prepare", *(stage.name for stage in made)))
    if not spec.env.is_held_out:
        return (*made, train)
    before = {"before": start_place(spec)} if spec.evaluation.before_training else {}
    return (*made, train, evaluation(spec, places, {**before, "after": places.model}, ("train",)))
