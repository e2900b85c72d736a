"""What the batch algebra calls legal the trainers' own checks accept, and what it calls illegal they refuse.

Where a trainer goes on and does something else than was asked for, the constraint says so (`silent`); these cases
are told apart here too, so that a trainer that begins to refuse them, or stops refusing others, breaks a test.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from xp.backends.skyrl.control.constraints import CONSTRAINTS as SKYRL
from xp.backends.slime.control.constraints import CONSTRAINTS as SLIME
from xp.backends.trl.control.constraints import CONSTRAINTS as TRL
from xp.composition import compose
from xp.fields.batch_shape import BatchShape, batch_shape
from xp.planning.batch import Constraint, Tier

ROOT = Path(__file__).parents[2]
NUM_SETTINGS = 400


def settings(seed: int) -> list[BatchShape]:
    """Random counts of episodes on data-parallel placements; about half of them are legal."""
    draw = random.Random(seed)
    default = batch_shape(compose([]))
    found = []
    for _ in range(NUM_SETTINGS):
        ranks = draw.choice([1, 2, 3, 4, 8])
        micro = draw.randint(1, 6)
        updates = draw.randint(1, 4)
        prompts = draw.randint(1, 24)
        group = draw.randint(2, 8)
        if draw.random() < 0.5:
            prompts = updates * math.lcm(ranks * micro, group) // group * draw.randint(1, 2)
        found.append(
            replace(
                default,
                prompts=prompts,
                group=group,
                updates=updates,
                micro=micro,
                per_node=ranks,
                num_nodes=1,
            )
        )
    return found


def verdict(batch: BatchShape, constraints: Sequence[Constraint]) -> str:
    """`legal`, `refused` by the trainer, or `silent`."""
    broken = [
        constraint
        for constraint in constraints
        if constraint.tier is not Tier.PLACEMENT and not constraint.holds(batch)
    ]
    if not broken:
        return "legal"
    return "silent" if all(constraint.silent for constraint in broken) else "refused"


def check(
    found: Sequence[BatchShape], constraints: Sequence[Constraint], answers: Sequence[str | None]
) -> None:
    """Each batch's verdict against the trainer's answer: None, or the message of its refusal."""
    verdicts = [verdict(batch, constraints) for batch in found]
    assert {"legal", "refused", "silent"} <= set(verdicts)
    for batch, said, answer in zip(found, verdicts, answers, strict=True):
        assert (answer is None) == (said != "refused"), (said, answer, batch)


def test_trl_agrees(tmp_path: Path) -> None:
    from trl import GRPOConfig

    def updates_or_refusal(batch: BatchShape) -> tuple[float, str | None]:
        class OfSeveral(GRPOConfig):  # type: ignore[misc]
            world_size = property(lambda _: batch.ranks)

        accumulation = batch.episodes // (batch.updates * batch.micro * batch.ranks)
        try:
            args = OfSeveral(
                output_dir=str(tmp_path),
                use_cpu=True,
                bf16=False,
                report_to="none",
                generation_batch_size=batch.episodes,
                num_generations=batch.group,
                per_device_train_batch_size=batch.micro,
                gradient_accumulation_steps=max(1, accumulation),
            )
        except ValueError as error:
            return 0.0, str(error)
        return args.steps_per_generation / args.gradient_accumulation_steps, None

    found = settings(seed=1)
    answers = [updates_or_refusal(batch) for batch in found]
    check(found, TRL, [refusal for _, refusal in answers])
    assert any(refusal is None for _, refusal in answers)
    for batch, (updates, refusal) in zip(found, answers, strict=True):
        if refusal is None:
            assert (updates == batch.updates) == (verdict(batch, TRL) == "legal"), batch


SKYRL_PROGRAM = """
import json, sys, typing
from types import SimpleNamespace as N
import typing_extensions
typing.TypedDict = typing_extensions.TypedDict  # skyrl 0.4.0 asks for Python 3.12
from skyrl.train.utils.utils import validate_batch_sizes
answers = []
for s in json.load(sys.stdin):
    shape = N(pipeline_model_parallel_size=1, context_parallel_size=1, tensor_model_parallel_size=1)
    part = N(megatron_config=shape, sequence_parallel_size=1, model=N(path=None))
    cfg = N(
        generator=N(n_samples_per_prompt=s["group"]),
        trainer=N(
            strategy="fsdp", train_batch_size=s["prompts"], policy_mini_batch_size=s["prompts"] // s["updates"],
            micro_train_batch_size_per_gpu=s["micro"], micro_forward_batch_size_per_gpu=s["micro"],
            policy=part, critic=part, ref=part, algorithm=N(use_kl_loss=True, use_kl_in_reward=False),
            placement=N(**{f"{p}_{k}": v for p in ("policy", "critic", "ref")
                           for k, v in (("num_nodes", 1), ("num_gpus_per_node", s["per_node"]))}),
        ),
    )
    try:
        validate_batch_sizes(cfg)
        answers.append(None)
    except (AssertionError, ZeroDivisionError) as error:
        answers.append(str(error) or "refused")
print(json.dumps(answers))
"""

SLIME_PROGRAM = """
import json, sys
from types import SimpleNamespace as N
from megatron.core.num_microbatches_calculator import ConstantNumMicroBatchesCalculator
from slime.utils.dp_schedule import build_dp_schedule
answers = []
for s in json.load(sys.stdin):
    episodes = s["prompts"] * s["group"]
    packed, micro = s["is_packed"], 1 if s["is_packed"] else s["micro"]
    args = N(use_dynamic_batch_size=packed, max_tokens_per_gpu=30 if packed else None, micro_batch_size=micro,
             balance_data=False, balance_by_flops=False)
    parallel = {"dp_size": s["per_node"], "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    try:
        # As slime/backends/megatron_utils/initialize.py sets it up on every rank.
        ConstantNumMicroBatchesCalculator(episodes // s["updates"], micro, s["per_node"], False, 0)
        build_dp_schedule(args, total_lengths=[10] * episodes, train_parallel_config=parallel,
                          global_batch_size=episodes // s["updates"], rollout_indices=list(range(episodes)))
        answers.append(None)
    except (AssertionError, ZeroDivisionError) as error:
        answers.append(str(error) or "refused")
print(json.dumps(answers))
"""


def ask(
    python: Path, program: str, found: Sequence[BatchShape], **environ: str
) -> list[str | None]:
    done = subprocess.run(
        [str(python), "-c", program],
        input=json.dumps([asdict(batch) for batch in found]),
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[str | None] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_skyrl_agrees() -> None:
    python = Path(os.environ.get("SKYRL_PYTHON", ROOT / ".venv-skyrl/bin/python"))
    if not python.exists():
        pytest.skip(
            "SkyRL is not here: give SKYRL_PYTHON, the interpreter of a virtual environment with skyrl==0.4.0"
        )
    found = settings(seed=2)
    check(found, SKYRL, ask(python, SKYRL_PROGRAM, found))


def test_slime_agrees() -> None:
    import sys

    slime = os.environ.get("SLIME_PATH")
    megatron = os.environ.get("MEGATRON_PATH")
    if not slime or not megatron:
        pytest.skip(
            "Slime is not here: give SLIME_PATH and MEGATRON_PATH, checkouts of THUDM/slime and its Megatron-LM"
        )
    found = [
        replace(batch, is_packed=number % 3 == 0) for number, batch in enumerate(settings(seed=3))
    ]
    check(
        found,
        SLIME,
        ask(Path(sys.executable), SLIME_PROGRAM, found, PYTHONPATH=f"{slime}:{megatron}"),
    )
