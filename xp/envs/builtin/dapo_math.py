"""Competition mathematics from the Hugging Face hub: DAPO-Math-17k to train on, AIME 2024 to test on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.lib.data_files import rows_of_hub

TRAIN: Final = "hf:BytedTsinghua-SIA/DAPO-Math-17k"
TEST: Final = "hf:BytedTsinghua-SIA/AIME-2024"


def hub() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Both sets with each problem once: the published files repeat them, 100 and 32 times.

    Raises:
        XpError: they are neither on the hub nor in its cache on this machine.
    """
    return {
        split: _distinct(rows_of_hub(name)) for split, name in (("train", TRAIN), ("test", TEST))
    }


def _distinct(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    rows = [row for split in splits.values() for row in split]
    by_text = {row["prompt"][-1]["content"]: row for row in rows}
    return [
        {"prompt": row["prompt"], "answer": row["reward_model"]["ground_truth"]}
        for row in by_text.values()
    ]
