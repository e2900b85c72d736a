"""A published model with merged adapters beside its base: `python -m tools.gpu.drift BASE OUTPUTS [--rank 16]`.

OUTPUTS is the outputs root of the run. The last line is JSON: matrices that differ, the largest rank of a difference
(of singular values above a thousandth of the first), the largest difference of anything else, and the norm of all
differences relative to the base's. Adapters change matrices by their rank alone; everything else must be the base's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARE = 1e-3


def tensors(directory: Path) -> dict[str, Any]:
    """All weights of a model's directory, in float32."""
    from safetensors.torch import load_file

    files = sorted(directory.glob("*.safetensors"))
    return {name: tensor.float() for file in files for name, tensor in load_file(file).items()}


def main(argv: Sequence[str]) -> None:
    """Print the figures."""
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    options = parser.parse_args(argv)
    (published,) = options.outputs.glob("runs/*/model")
    base = tensors(options.base)
    after = tensors(published)
    ranks = []
    elsewhere = 0.0
    squares = 0.0
    total = 0.0
    for name in base.keys() & after.keys():
        change = after[name] - base[name]
        squares = squares + float(change.square().sum())
        total = total + float(base[name].square().sum())
        if not change.any():
            continue
        if change.ndim == 2:
            values = torch.linalg.svdvals(change)
        else:
            values = None
        if values is None:
            rank = None
        else:
            rank = int((values > SHARE * values[0]).sum())
        if rank is None or rank > options.rank:
            elsewhere = max(elsewhere, float(change.abs().max()))
        else:
            ranks.append(rank)
    figures = {"changed": len(ranks), "rank": max(ranks, default=0), "elsewhere": elsewhere}
    print(json.dumps(figures | {"relative_norm": round((squares / total) ** 0.5, 6)}))


if __name__ == "__main__":
    main(sys.argv[1:])
