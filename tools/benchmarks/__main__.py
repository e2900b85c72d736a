"""`python -m tools.benchmarks [NAME ...]` runs the named benchmarks (bench_NAME.py), or all of them."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def main(names: list[str]) -> int:
    """Run each benchmark's `main()`; it prints its own figures."""
    legal = sorted(
        file.stem.removeprefix("bench_") for file in Path(__file__).parent.glob("bench_*.py")
    )
    unknown = [name for name in names if name not in legal]
    if unknown:
        print(
            f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(legal)}",
            file=sys.stderr,
        )
        return 2
    for name in names or legal:
        print(f"== {name}", flush=True)
        import_module(f"tools.benchmarks.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
