"""TRL trains each family of which somebody trains a checkpoint: a tiny network of it is planned, sampled, updated once
and published, and its log-probabilities are those of the model's own forward pass."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.support.engine_checks import check_two_turns, trl_gap
from tests.support.families import FAMILIES, REFUSED, SPREAD, TRAINED, write_family
from tests.support.forked import in_stage, run_forked
from tests.support.media_commands import weights
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.planning.plan import build_plan
from xp.planning.stages import prepare_config
from xp.tasks.prepare import prepare
from xp.worker.media import auto_class, load_network, text_names_of
from xp.worker.program import run_stage

TOLERANCE = 1e-5
"""Largest difference of a log-probability in float32, in nats."""
STEP = (
    "env=sums",
    "env.train.num_tasks=4",
    "env.held_out=null",
    "model=hf",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.num_steps=1",
    "training.warmup_updates=0",
    "training.learning_rate=1e-3",
    # An untrained model earns nothing: the entropy bonus alone moves its weights.
    "training.entropy_coef=0.01",
    "training.max_tokens_per_turn=8",
    "training.max_response_tokens=64",
)


def check_published(directory: Path, start: Path) -> None:
    """The text network is trained, everything else is as before, and transformers loads all of it."""
    before = weights(start)
    after = weights(directory)
    assert after.keys() == before.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    kind = auto_class(AutoConfig.from_pretrained(start))
    if kind.__name__ != "AutoModelForCausalLM":
        assert changed <= text_names_of(start)
        assert before.keys() - text_names_of(start)
    _, loading = kind.from_pretrained(directory, output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_planned_sampled_updated_and_published(family: str, tmp_path: Path) -> None:
    from trl import GRPOTrainer  # noqa: F401 - imported once, before the forks

    from xp.backends.trl.worker import guard, train  # noqa: F401

    start = write_family(family, tmp_path / "start", spread=SPREAD)
    words = [*STEP, f"model.path={start}", f"outputs={tmp_path}", "backend=trl"]
    ranks = ("hardware=8xH100", "training.group_size=4", "training.micro_batch_size=1")
    build_plan(compose([*words, *ranks]), "r", 1)
    spec = compose([*words, "hardware=cpu", "model.dtype=float32"])
    stages = {stage.name: stage for stage in build_plan(spec, "r", 1).stages}
    assert stages.keys() == {"prepare", "train"}

    model: Any = load_network(start, torch.float32).eval()
    check_two_turns(model, TOLERANCE)
    assert trl_gap(model) < TOLERANCE

    prepare(prepare_config(spec), os.environ, tmp_path)
    program = partial(run_stage, train.main)
    run_forked(
        in_stage(
            stages["train"],
            tmp_path,
            {},
            program,
        ),
        tmp_path / "log.txt",
    )
    (line,) = read_metrics(tmp_path / "runs/r/metrics.jsonl", "train")
    assert line["episodes/num"] == 4
    assert line["training/grad_norm"] > 0
    assert line["training/logprob_gap"] < TOLERANCE
    check_published(tmp_path / "runs/r/model", start)


def test_the_table_names_tests_that_exist() -> None:
    for trainer in TRAINED:
        for family, proof in {**TRAINED[trainer], **REFUSED.get(trainer, {})}.items():
            file, _, test = proof.partition("::")
            assert f"def {test.partition('[')[0]}(" in Path(file).read_text()
            assert family in FAMILIES
    for trainer in ("trl", "skyrl"):
        assert TRAINED[trainer].keys() | REFUSED.get(trainer, {}).keys() == FAMILIES.keys()


def test_transformers_knows_every_family() -> None:
    from transformers import CONFIG_MAPPING

    assert {entry.name or family for family, entry in FAMILIES.items()} <= {*CONFIG_MAPPING.keys()}
