"""Slime's own arguments of a spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.jobs import train_config
from tests.trainers.slime_setup import parsed
from xp.backends.slime.worker.config import SlimeCommand, SlimeTrainConfig
from xp.backends.slime.worker.program import absolute_flags
from xp.fields.slime_media import LOADED_CHECKPOINTS
from xp.lib.models.network import KEYS
from xp.spec import RunSpec
from xp.tasks.training_length import steps_of

NUM_TASKS = 500


def command(spec: RunSpec) -> SlimeCommand:
    config = train_config(SlimeTrainConfig, spec)
    return config.with_steps(steps_of(config.spec.training, NUM_TASKS)).from_the_start().command


def parse(spec: RunSpec, root: Path, **keys: Any) -> Any:
    """Slime's `parse_args` on the rendered command line, with a model directory that has no weights.

    Args:
        spec: the run's.
        root: the outputs root.
        keys: more of config.json.
    """
    from slime.utils.arguments import parse_args

    architecture = spec.model.architecture
    assert architecture is not None
    assert spec.model.path is not None
    fields = architecture.model_dump(mode="json")
    model = root / spec.model.path
    model.mkdir(parents=True, exist_ok=True)
    config = {
        theirs[0]: fields[ours] for ours, theirs in KEYS.items() if fields.get(ours) is not None
    }
    config["rope_theta"] = architecture.rope_theta
    config |= {"norm_topk_prob": True, "decoder_sparse_step": 1, **keys}
    whole = LOADED_CHECKPOINTS.get(architecture.model_type)
    if whole is not None:
        config = {"model_type": whole, "text_config": config}
    (model / "config.json").write_text(json.dumps(config))
    held_out = root / "runs/r/attempt_1/train/held_out.jsonl"
    held_out.parent.mkdir(parents=True, exist_ok=True)
    held_out.touch()
    flags = absolute_flags(command(spec), root)
    if spec.backend.convert_model and "--ref-load" in flags:
        Path(flags[flags.index("--ref-load") + 1]).mkdir(parents=True, exist_ok=True)
    return parsed(flags, parse_args)
