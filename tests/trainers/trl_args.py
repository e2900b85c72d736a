"""Builds the GRPOConfig of recipes as the first of their processes would, without the others: writes each as JSON.

Each recipe has a process of its own, forked where the trainer is imported already: importing takes most of the time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from xp.backends.trl.control.render import grpo_config
from xp.composition import compose
from xp.fields.trl import world_size
from xp.worker.places import RunPaths

MAX_STEPS = 18
"""What the stage's program puts there, where a recipe counts epochs."""


def main(recipe: str, directory: Path) -> None:
    spec = compose([f"recipes={recipe}"])
    processes = world_size(spec)
    if processes > 1:
        import torch.distributed
        from torch.testing._internal.distributed.fake_pg import FakeStore

        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        torch.distributed.init_process_group(
            "fake", store=FakeStore(), rank=0, world_size=processes
        )
    from trl import GRPOConfig

    rendered = grpo_config(spec, RunPaths(run="runs/r", attempt=1, tasks="tasks/t"))
    if rendered["max_steps"] is None:
        rendered["max_steps"] = MAX_STEPS
    # The device alone is this machine's.
    args = GRPOConfig(**rendered | {"output_dir": str(directory), "use_cpu": True})
    values = {name: getattr(args, name) for name in rendered} | derived(args)
    (directory / f"{recipe}.json").write_text(json.dumps(values, default=str))


def derived(args: object) -> dict[str, object]:
    return {
        name: getattr(args, name)
        for name in ("world_size", "steps_per_generation", "mixed_precision")
    }


def each(directory: Path, recipes: Sequence[str]) -> int:
    """Leaves a file for each recipe; one that fails says why and has none."""
    import torch.distributed
    from trl import GRPOConfig

    assert torch.distributed
    assert GRPOConfig
    for recipe in recipes:
        child = os.fork()
        if child == 0:
            main(recipe, directory)
            os._exit(0)
        os.waitpid(child, 0)
    return 0
