"""Says what model.lora makes of a checkpoint's network, in a process of its own, so that a plan imports no torch."""

from __future__ import annotations

import sys

from xp.backends.trl.worker.lora import check_targets
from xp.worker.adapters import print_adapters

if __name__ == "__main__":
    print_adapters(check_targets, *sys.argv[1:])
