"""The frame of a backend's program: each case through its trainer, beside the reference, and one JSON file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.parity.critic import ExactCritic
from tools.parity.differences import differences
from tools.parity.found import Found
from tools.parity.model import TEACHER, ExactPolicy, make_model
from tools.parity.recorded import ParityCase, RecordedEpisode, Work, batch_of
from tools.parity.reference import reference
from xp.errors import XpError
from xp.lib.reading import config_of

Cell = dict[str, Any]
"""Differences by name, and `reported`: metric -> the trainer's value, the reference's, and what their difference is
relative to; or `fault`."""
OF_PARTS = ("training/loss", "training/policy_loss")
"""Sums of parts which nearly cancel."""
LEAST = 1e-3
"""Smallest value that a metric's difference is relative to: a KL divergence near 0 is a difference of its own."""
Trainer = Callable[[ParityCase, Sequence[RecordedEpisode], Path, Path], Found]
"""Takes a case, the batch, the model's directory and a scratch directory."""


def measure(argv: Sequence[str], trainer: Trainer) -> None:
    """`argv`: the work's file, and the file that gets case -> differences, or the fault where a case failed."""
    work = config_of(Path(argv[0]), Work.from_json)
    results: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory(prefix="xp-parity-") as scratch:
        model = Path(scratch, "model")
        make_model(model, Path(work.tokenizer))
        make_model(model.with_name(TEACHER), Path(work.tokenizer), seed=1)
        for number, case in enumerate(work.cases):
            place = Path(scratch, str(number))
            place.mkdir()
            try:
                results[case.name] = measured(case, batch_of(case.rule), model, place, trainer)
            except XpError as error:
                results[case.name] = {"fault": str(error)}
            print(case.name, results[case.name], flush=True)
    Path(argv[1]).write_text(json.dumps(results, indent=2) + "\n")


def measured(
    case: ParityCase,
    episodes: Sequence[RecordedEpisode],
    model: Path,
    scratch: Path,
    trainer: Trainer,
) -> Cell:
    """One case: the trainer first, since it says which episodes are in which update."""
    found = trainer(case, episodes, model, scratch)
    policy = ExactPolicy(model, None if case.lora_scale is None else found.start, case.lora_scale)
    if found.critic is None:
        critic = None
    else:
        critic = ExactCritic(model, found.critic.start)
    if case.rule.distill is None:
        teacher = None
    else:
        teacher = ExactPolicy(model.with_name(TEACHER))
    wanted = reference(case.rule, episodes, policy, found.members, critic, teacher)
    if found.critic is None or wanted.critic is None:
        of_critic = {}
    else:
        of_critic = _of_critic(found.critic, wanted.critic)
    size = fmean(wanted.sizes)
    named = wanted.reported
    both = {
        name: [value, named[name], size if name in OF_PARTS else max(abs(named[name]), LEAST)]
        for name, value in found.reported.items()
        if name in named
    }
    return {**asdict(differences(found, wanted)), **of_critic, "reported": both}


def _of_critic(found: Found, wanted: Found) -> Cell:
    named = asdict(differences(found, wanted))
    named["returns"] = named.pop("advantages")
    return {f"critic_{name}": value for name, value in named.items()}
