"""`make chaos`: breaks the embedded default by `faults`, resumes it, and compares it with an undisturbed run.

`python -m tests.chaos [--kills 100] [--others 30] [--seed 0] [--minutes M] [--kinds kill,disk] [--parallel 2]`; the
directory (`--directory DIR`, else a temporary one) keeps the runs that ended in a refusal or wrongly.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, KILLS, WEIGHTS, Wall, is_root
from tests.chaos.place import STAGES, Place, ended

SAME, REFUSED, LATE, WRONG = "same result", "clear refusal", "too late", "WRONG"
MAX_ATTEMPTS = 4


@dataclass(frozen=True)
class Undisturbed:
    """The run to which the others are compared."""

    result: dict[str, Any]
    wall: Wall


@dataclass(frozen=True)
class Verdict:
    kind: str
    seed: int
    what: str
    hits: int
    attempts: int
    end: str
    why: str


def undisturbed(root: Path) -> Undisturbed:
    """Run it once; raises AssertionError where it fails."""
    place = Place(root)
    assert ended(place.begin()) == 0, place.screen()[-3000:]
    run = place.run()
    assert run is not None
    began = [(run / "attempt_1" / name / "log.txt").stat() for name in STAGES]
    ends = [info.st_mtime for info in began]
    first = (run / "spec.yaml").stat().st_mtime
    starts = [first, *ends[:-1]]
    return Undisturbed(place.result(), {name: max(1.0, b - a) for name, a, b in zip(STAGES, starts, ends, strict=True)})


def disturbed(kind: str, seed: int, root: Path, whole: Undisturbed) -> Verdict:
    """Play one fault and resume until the run ends, or refuses twice in the same words."""
    place, what = FAULTS[kind](random.Random(f"{kind} {seed}"), root, whole.wall)
    try:
        end, why, attempts = _resumed(place, whole)
    finally:
        place.stop()
    attempts = max(attempts, place.num_attempts())
    return Verdict(kind, seed, what, place.num_hits, attempts, LATE if end == SAME and not place.num_hits else end, why)


def _resumed(place: Place, whole: Undisturbed) -> tuple[str, str, int]:
    if not place.quiet():
        names = [" ".join(one.cmdline())[:80] for one in place.processes()]
        return WRONG, f"a minute after its supervisor's end there still runs {names}", 1
    code: int | None = _status(place)
    attempts = 1
    while code != 0 and attempts < MAX_ATTEMPTS:
        code = ended(place.go_on())
        attempts += 1
    screen = place.screen()
    if "Traceback" in screen:
        return WRONG, f"a traceback on the screen: {screen[screen.index('Traceback') :][-600:]}", attempts
    if code != 0:
        return (REFUSED if code is not None else WRONG), f"exit {code}: {screen[-300:]}", attempts
    result = place.result()
    if result != whole.result:
        differs = [name for name in result if result[name] != whole.result[name]]
        return WRONG, f"another result: {', '.join(differs)}", attempts
    return SAME, "", attempts


def _status(place: Place) -> int:
    """0 where the run is finished already."""
    run = place.run()
    if run is None or not (run / "run.json").is_file():
        return 1
    return int(json.loads((run / "run.json").read_text())["status"] != "succeeded")


def kinds_of(kills: int, others: int, seed: int, only: Sequence[str] = ()) -> list[str]:
    """Which faults: one of each kind first, then the rest of the kills among others drawn by weight."""
    known = [kind for kind in FAULTS if (not only or kind in only) and (kind != "disk" or is_root())]
    rest = [kind for kind in known if kind not in KILLS]
    draw = random.Random(seed)
    drawn = draw.choices(rest, [WEIGHTS[kind] for kind in rest], k=max(0, others - len(rest))) if rest else []
    killing = [kind for kind in known if kind in KILLS]
    drawn += [killing[number % len(killing)] for number in range(kills - len(killing))] if killing else []
    draw.shuffle(drawn)
    return [*known, *drawn]


def main(argv: Sequence[str]) -> int:
    """Play the faults, print each verdict and the table; returns the number of wrong ends, at most 1."""
    options = _parser().parse_args(argv)
    root = options.directory or Path(tempfile.mkdtemp(prefix="xp-chaos-"))
    until = time.monotonic() + 60 * options.minutes
    whole = undisturbed(root / "undisturbed")
    print(f"undisturbed: { ({name: round(wall, 1) for name, wall in whole.wall.items()}) } s, in {root}", flush=True)
    kinds = kinds_of(options.kills, options.others, options.seed, options.kinds.split(",") if options.kinds else ())

    def play(number: int) -> Verdict | None:
        return _played(kinds[number], number, options.seed, root, whole) if time.monotonic() < until else None

    with ThreadPoolExecutor(options.parallel) as pool:
        verdicts = [verdict for verdict in pool.map(play, range(len(kinds))) if verdict is not None]
    print(table(verdicts))
    return min(1, sum(verdict.end == WRONG for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="runs that are killed once or more")
    parser.add_argument("--others", type=int, default=30, help="faults of the other kinds together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="no fault begins after so many")
    parser.add_argument("--kinds", default="", help="only these, by comma")
    parser.add_argument("--parallel", type=int, default=1, help="runs at one time")
    parser.add_argument("--directory", type=Path)
    return parser


def _played(kind: str, number: int, seed: int, root: Path, whole: Undisturbed) -> Verdict:
    """Plays one fault, prints the verdict, and keeps the run only where something is to be looked at."""
    place = root / f"{number:03d}"
    verdict = disturbed(kind, seed * 1000 + number, place, whole)
    print(f"{number:3d} {verdict.end}, {verdict.attempts} attempts: {verdict.what} {verdict.why}", flush=True)
    if verdict.end in (SAME, LATE):
        subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(place, ignore_errors=True)
    return verdict


def table(verdicts: Sequence[Verdict]) -> str:
    """The table of docs/results.md."""
    counts = Counter((verdict.kind, verdict.end) for verdict in verdicts)
    lines = [
        "| fault | runs | faults in them | same result | clear refusal | after the run's end | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in FAULTS:
        ends = [counts[kind, end] for end in (SAME, REFUSED, LATE, WRONG)]
        hits = sum(verdict.hits for verdict in verdicts if verdict.kind == kind)
        if sum(ends):
            lines.append(f"| {kind} | {sum(ends)} | {hits} | {' | '.join(map(str, ends))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
