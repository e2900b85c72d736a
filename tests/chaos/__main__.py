"""`make chaos`: breaks the embedded default, several times a run, resumes it, and compares it with an undisturbed run.

`python -m tests.chaos [--faults 100] [--seed 0] [--minutes M] [--kinds kill,disk] [--parallel 2]`; the directory
(`--directory DIR`, else a temporary one) keeps the runs that ended in a refusal or wrongly.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tests.chaos.faults import FAULTS, PER_RUN, Work, is_root
from tests.chaos.place import POLL_S, SMALL, STAGES, Place, cpu_s, ended

SAME = "same result"
REFUSED = "clear refusal"
LATE = "too late"
WRONG = "WRONG"
MAX_ATTEMPTS = 4


@dataclass(frozen=True)
class Undisturbed:
    """The run to which the others are compared."""

    result: dict[str, Any]
    work: Work


@dataclass(frozen=True)
class Verdict:
    kind: str
    seed: int
    what: str
    hits: int
    attempts: int
    end: str
    why: str


def undisturbed(root: Path, spec: Sequence[str] = SMALL) -> Undisturbed:
    """Run it once and measure it; raises AssertionError where it fails."""
    place = Place(root, spec)
    process = place.begin()
    used = 0.0
    began: dict[str, float] = {}
    while process.poll() is None:
        used = max(used, cpu_s(process))
        began |= {name: used for name in STAGES if name not in began and place.stage_began(name)}
        time.sleep(POLL_S)
    assert ended(process) == 0, place.screen()[-3000:]
    ends = [*[began[name] for name in STAGES[1:]], used]
    return Undisturbed(
        place.result(), {name: end - began[name] for name, end in zip(STAGES, ends, strict=True)}
    )


def disturbed(kind: str, seed: int, root: Path, whole: Undisturbed, number: int) -> Verdict:
    """Play so many faults of a kind over one run and resume it until it ends, or goes on refusing."""
    place, what = FAULTS[kind](random.Random(f"{kind} {seed}"), root, whole.work, number)
    try:
        end, why, attempts = _resumed(place, whole)
    finally:
        place.stop()
    attempts = max(attempts, place.num_attempts())
    return Verdict(
        kind,
        seed,
        what,
        place.num_hits,
        attempts,
        LATE if end == SAME and not place.num_hits else end,
        why,
    )


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
        return (
            WRONG,
            f"a traceback on the screen: {screen[screen.index('Traceback') :][-600:]}",
            attempts,
        )
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


def kinds_of(seed: int, only: Sequence[str] = ()) -> Iterator[str]:
    """Kinds of runs without end: all of them in a row, kills twice, and again."""
    known = [
        kind for kind in FAULTS if (not only or kind in only) and (kind != "disk" or is_root())
    ]
    draw = random.Random(seed)
    while True:
        yield from draw.sample(
            [*known, *(kind for kind in known if kind == "kill")], k=len(known) + ("kill" in known)
        )


def main(argv: Sequence[str]) -> int:
    """Play runs until enough faults have hit, print each verdict and the table; returns 1 where a run ended wrongly."""
    options = _parser().parse_args(argv)
    root = options.directory or Path(tempfile.mkdtemp(prefix="xp-chaos-"))
    until = time.monotonic() + 60 * options.minutes
    whole = undisturbed(root / "undisturbed", SMALL)
    work = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in whole.work.items())
    print(f"undisturbed: {work} s of processor time, in {root}", flush=True)
    endless = kinds_of(options.seed, options.kinds.split(",") if options.kinds else ())
    kinds = iter(
        list(enumerate(islice(endless, 10_000)))
    )  # Unlike a generator, an iterator that threads may share.
    verdicts: list[Verdict] = []

    def play(_: int) -> None:
        while time.monotonic() < until and sum(one.hits for one in verdicts) < options.faults:
            number, kind = next(kinds)
            verdicts.append(_played(kind, number, options.seed, root, whole))

    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(play, range(options.parallel)))
    print(table(verdicts))
    return int(any(verdict.end == WRONG for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--faults", type=int, default=100, help="no run begins after so many have hit"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="no run begins after so many")
    parser.add_argument("--kinds", default="", help="only these, by comma")
    parser.add_argument("--parallel", type=int, default=1, help="runs at one time")
    parser.add_argument("--directory", type=Path)
    return parser


def _played(kind: str, number: int, seed: int, root: Path, whole: Undisturbed) -> Verdict:
    """Plays one run, prints the verdict, and keeps the run only where something is to be looked at."""
    place = root / f"{number:03d}"
    verdict = disturbed(kind, seed * 1000 + number, place, whole, PER_RUN[kind])
    print(
        f"{number:3d} {kind}: {verdict.end}, {verdict.hits} faults, {verdict.attempts} attempts: ",
        end="",
    )
    print(verdict.what, verdict.why, flush=True)
    if verdict.end in (SAME, LATE):
        subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(place, ignore_errors=True)
    return verdict


def table(verdicts: Sequence[Verdict]) -> str:
    """The table of faults and results."""
    counts = Counter((verdict.kind, verdict.end) for verdict in verdicts)
    lines = [
        "| fault | runs | faults | same result | clear refusal | after the run's end | wrong |",
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
