"""Says what model.lora makes of a checkpoint's network, in a process of its own, so that a plan imports no torch."""

from __future__ import annotations

import json
import sys
from typing import Any

from xp.backends.trl.worker.lora import check_targets
from xp.worker.adapters import probed


def answer(directory: str, settings: str) -> dict[str, Any]:
    """See `probed`."""
    return probed(check_targets, directory, settings)


if __name__ == "__main__":
    print(json.dumps(answer(*sys.argv[1:])), flush=True)
