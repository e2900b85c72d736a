"""The models of `model=tiny` and `model=tiny_vlm`, which xp ships, and the program that puts one into the outputs.

`python -m xp.worker.tiny_model <config.json>`. `make tiny-model` and `make tiny-vlm` trained them (tools/tiny_model,
tools/tiny_vlm).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xp.lib.reading import config_of
from xp.lib.verified import damaged
from xp.worker.program import run_stage
from xp.worker.publish import made_beside, take_name

MANIFEST: Final = "manifest.json"
SHIPPED: Final = Path(__file__).with_name("tiny")
PLACE: Final = "models/tiny-2c74c8ae42f3"
"""Place of the model in the outputs, named by the digest of its weights."""
VISION_SHIPPED: Final = Path(__file__).with_name("tiny_vlm")
VISION_PLACE: Final = "models/tiny-vlm-8bc2af8eb22f"
"""Place of the model that reads pictures."""
MODELS: Final = {PLACE: SHIPPED, VISION_PLACE: VISION_SHIPPED}
"""Place in the outputs -> directory in the package."""


def main(argv: Sequence[str]) -> None:
    """Copies the model into a sibling directory and renames it into place."""
    target = config_of(Path(argv[0]), lambda text: Path(json.loads(text)["target"]))
    with made_beside(target) as unfinished:
        shutil.copytree(MODELS[str(target)], unfinished, dirs_exist_ok=True)
        unfinished.chmod(0o755)
        take_name(unfinished, target, lambda: damaged(target / MANIFEST) is None)
    print(f"model: {target}, copied from xp", flush=True)


if __name__ == "__main__":
    sys.exit(run_stage(main, sys.argv[1:]))
