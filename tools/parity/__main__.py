"""`python -m tools.parity`: measures how far each trainer's updates are from the papers'.

Every option of `algorithm` is measured; it fails if an update differs by more than 1e-5 without a known reason.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.parity.measure import PROGRAMS, measure, table, unexplained
from xp.errors import ExitCode, XpError


def main(argv: Sequence[str]) -> int:
    """Runs one recorded batch through the trainers; returns 0 if every difference is explained."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.parity", description=__doc__.splitlines()[0]
    )
    parser.add_argument("overrides", nargs="*", help="overrides of the spec, as of python -m xp")
    parser.add_argument("--backends", default=",".join(PROGRAMS), help="names, separated by commas")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="BACKEND=PATH",
        help="a trainer's interpreter",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the differences to FILE as JSON"
    )
    given = parser.parse_args(argv)
    pythons = dict(one.partition("=")[::2] for one in given.python)
    if given.out is not None:
        given.out.open(
            "a"
        ).close()  # A file that cannot be written fails before the measurement, which takes minutes.
    measured = measure(given.overrides, given.backends.split(","), pythons)
    print("\n".join(table(measured)), flush=True)
    if given.out is not None:
        given.out.write_text(measured.to_json(), encoding="utf-8")
    faults = unexplained(measured)
    if faults:
        raise XpError("\n".join(faults), ExitCode.STAGE_FAILED)
    return ExitCode.OK


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (XpError, OSError) as error:
        sys.exit(f"{error}")
