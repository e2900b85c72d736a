"""Fine-tunes the model on episodes with Slime's train.py: `python -m xp.backends.slime.worker.sft <config.json>`."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from xp.backends.slime.worker.config import (
    INPUT_KEY,
    METADATA_KEY,
    ORDER,
    SlimeSftConfig,
    WorkerConfig,
)
from xp.backends.slime.worker.models import check_architecture, local_model, publish_model
from xp.backends.slime.worker.program import run_train
from xp.backends.slime.worker.sources import open_sources
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.models.weights import DEQUANTIZED
from xp.lib.reading import config_of
from xp.worker.facts import check_weights
from xp.worker.program import run_stage
from xp.worker.sft import SftProgram
from xp.worker.slime_names import STEPS_FLAG, warm_up_too_long

EXAMPLE: Final = "example"
"""Key of a line's metadata: index of the episode. null means a filler without a trained token."""


def main(argv: Sequence[str]) -> None:
    """Runs the fine-tuning of a config file, from the last complete checkpoint if there is one."""
    path = Path(argv[0]).absolute()
    config = config_of(path, SlimeSftConfig.from_json)
    stage = path.parent
    root = Path.cwd()
    open_sources(config.command)
    model = local_model(config.model, root)
    check_architecture(model, config.architecture)
    check_weights(model, converted=DEQUANTIZED)
    program = SftProgram.begin(config, stage, model)
    num_updates = program.num_updates
    if config.spec.sft.warmup_updates > num_updates:
        raise XpError(f"sft.warmup_updates: {warm_up_too_long(num_updates)}", ExitCode.PLAN)
    program.write_files()
    write_order(config, len(program.trained), stage / ORDER)
    checkpoints = config.checkpoints_in(root)
    latest = checkpoints.choose_latest()
    if latest is not None:
        print(f"continuing from update {latest + 1} of {num_updates}", flush=True)
    if latest is None or latest + 1 < num_updates:
        run_train(
            config.command.with_value(STEPS_FLAG, str(num_updates)),
            WorkerConfig.of(config, root, num_updates),
        )
    chat = program.chat
    last = checkpoints.exports / str(num_updates - 1)
    publish_model(last, root / config.target, chat.end_ids, chat.template)
    checkpoints.prune(config.spec.training.keep_checkpoints)
    program.check()


def write_order(config: SlimeSftConfig, num_examples: int, file: Path) -> None:
    """Writes Slime's prompt data: for each update the indices of its episodes, in a new random order in each epoch."""
    lines = (
        {INPUT_KEY: "", METADATA_KEY: {EXAMPLE: at}}
        for batch in _batches(config, num_examples)
        for at in (*batch, *[None] * (config.spec.sft.batch_size - len(batch)))
    )
    write_atomically(file, "".join(f"{json.dumps(line)}\n" for line in lines))


def _batches(config: SlimeSftConfig, num_examples: int) -> Iterator[list[int]]:
    draw = random.Random(config.spec.seed)
    rest = list[int]()
    for _ in range(config.updates(num_examples)):
        rest = rest or draw.sample(range(num_examples), num_examples)
        yield rest[: config.spec.sft.batch_size]
        rest = rest[config.spec.sft.batch_size :]


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
