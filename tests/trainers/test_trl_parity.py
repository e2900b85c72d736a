"""Random legal specs, rendered for TRL and read back by the real GRPOConfig, mean what they meant."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.trainers.same_meaning import Meant, differences, random_specs
from xp.backends.trl.control.render import grpo_config
from xp.fields.trl import world_size
from xp.spec import RunSpec
from xp.worker.places import RunPaths

PLACES = RunPaths(run="runs/r", attempt=1, tasks="tasks/t")
AGGREGATION = {
    "dapo": "token_mean",
    "grpo": "sequence_mean",
    "dr_grpo": "constant",
    "cispo": "token_mean",
}
SCHEDULE = {"constant_with_warmup": "constant"}


def drawn(draw: random.Random) -> dict[str, Any]:
    """A policy loss, as often the one as the other; cispo with what it needs to be taken."""
    if draw.random() < 0.5:
        return {"algorithm.ratio_level": draw.choice(["token", "sequence"])}
    return {
        "algorithm.policy_loss": "cispo",
        "algorithm.clip_low": 1.0,
        # Of whole eighths, to which 1 is added and taken away again without a rounding.
        "algorithm.clip_high": draw.randint(0, 40) / 8,
        "algorithm.loss_aggregation": "token_mean",
    }


def grpo_args(spec: RunSpec, directory: Path) -> Any:
    from trl import GRPOConfig

    class OfSeveral(GRPOConfig):  # type: ignore[misc]
        world_size = property(lambda _: world_size(spec))

    here: dict[str, Any] = {
        "output_dir": str(directory),
        "use_cpu": True,
        "bf16": False,
        "optim": "adamw_torch",
    }
    return OfSeveral(**grpo_config(spec, PLACES) | here)


def read(spec: RunSpec, args: Any) -> Meant:
    high = args.epsilon_high - 1 if args.loss_type == "cispo" else args.epsilon_high
    updates = args.num_iterations * args.steps_per_generation / args.gradient_accumulation_steps
    return Meant(
        prompts_per_step=args.generation_batch_size // args.num_generations,
        group_size=args.num_generations,
        episodes_per_update=args.per_device_train_batch_size
        * args.gradient_accumulation_steps
        * world_size(spec),
        updates_per_step=updates,
        num_steps=int(args.max_steps / updates),
        learning_rate=args.learning_rate,
        lr_schedule=SCHEDULE.get(args.lr_scheduler_type.value, args.lr_scheduler_type.value),
        warmup_updates=int(args.warmup_steps),
        weight_decay=args.weight_decay,
        adam=(args.adam_beta1, args.adam_beta2),
        max_grad_norm=args.max_grad_norm,
        kl_coef=args.beta,
        entropy_coef=args.entropy_coef,
        clip=(args.epsilon, high),
        loss_aggregation=AGGREGATION[args.loss_type],
        is_scaled_by_group=args.scale_rewards == "group",
        temperature=args.temperature,
        top_k=args.top_k or None,
        checkpoint_every=int(args.save_steps / updates),
        seed=args.seed,
    )


def test_random_specs_mean_the_same_to_grpo_config(tmp_path: Path) -> None:
    losses = set()
    for spec in random_specs("trl", count=24, own=drawn):
        args = grpo_args(spec, tmp_path)
        assert differences(spec, read(spec, args)) == {}
        losses.add((args.loss_type == "cispo", args.importance_sampling_level))
        said = (spec.algorithm.policy_loss == "cispo", spec.algorithm.ratio_level.value)
        assert said == (args.loss_type == "cispo", args.importance_sampling_level)
    assert losses == {(False, "token"), (False, "sequence"), (True, "token")}
