"""On PYTHONPATH for tests of Slime on a machine without a GPU: xp's stubs in every process, Ray's included."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

if os.environ.get("SLIME_ACCELERATOR") == "none-here":
    root = Path(__file__).resolve().parents[3]
    runpy.run_path(str(root / "tools/parity/slime_rehearsal/no_device.py"))["install"]()
