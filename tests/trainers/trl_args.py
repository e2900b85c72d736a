"""Builds the GRPOConfig of recipes as the first of their processes would, without the others: prints each as JSON.

python -m tests.trainers.trl_args OUTPUT_DIR RECIPE...

Each recipe has a process of its own, forked where the trainer is imported already: importing takes most of the time.
"""

from __future__ import annotations

import json
import os
import sys

from xp.backends.trl.control.render import grpo_config
from xp.composition import compose
from xp.fields.trl import world_size
from xp.worker.places import RunPaths

MAX_STEPS = 18
"""What the stage's program puts there, where a recipe counts epochs."""


def main(recipe: str, output_dir: str) -> None:
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
    args = GRPOConfig(**rendered | {"output_dir": output_dir, "use_cpu": True})
    print(
        recipe,
        json.dumps({name: getattr(args, name) for name in rendered} | derived(args), default=str),
    )


def derived(args: object) -> dict[str, object]:
    return {
        name: getattr(args, name)
        for name in ("world_size", "steps_per_generation", "mixed_precision")
    }


def each(output_dir: str, *recipes: str) -> None:
    """One line a recipe: its name, then its arguments; a recipe that fails says why and has no line."""
    import torch.distributed
    from trl import GRPOConfig

    assert torch.distributed
    assert GRPOConfig
    for recipe in recipes:
        child = os.fork()
        if child == 0:
            main(recipe, output_dir)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    each(*sys.argv[1:])
