"""What Slime's processes read of a stage, for tests that need nothing of Slime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.sections import PLACES, run_spec, unevaluated
from xp.backends.slime.worker.config import WorkerConfig

KEYS: dict[str, Any] = {
    "training__max_void_fraction": 0.2,
    "training__max_logprob_gap": 0.1,
    "training__group_size": 4,
    "training__prompts_per_step": 2,
}


def worker_config(root: Path, updates_per_step: int, steps: int = 10, **keys: Any) -> WorkerConfig:
    """The configuration of a training without held-out tasks; `keys` as `run_spec` takes them."""
    spec = unevaluated(run_spec(**KEYS | {"training__updates_per_step": updates_per_step} | keys))
    return WorkerConfig(
        root=str(root),
        spec=spec,
        places=PLACES,
        stage="train",
        steps=steps,
    )
