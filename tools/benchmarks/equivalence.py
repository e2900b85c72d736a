"""`make equivalence`: does one spec learn the same on several trainers? Several seeds each, and a test with a margin.

With `--against`, also: does one trainer learn the same with other settings?

Runs that are finished are read, cut ones resumed, the others run. Two figures a run: the area under its training curve
and its held-out reward afterwards. Two trainers are equivalent in a figure where two one-sided tests (Schuirmann 1987)
show that the difference of their means is within the margin. The tests are paired by seed: runs of one seed train on
the same tasks in the same order, and a paired test holds however strongly that ties them; Welch's would assume that it
does not. Both figures must be equivalent, so no correction for two tests is needed (intersection-union).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import yaml

from tools.benchmarks.curves import WINDOW, draw, windows
from tools.benchmarks.sweeps import TrainedRun, sweep, trained_runs
from xp.errors import XpError
from xp.results.evaluation.paired import PairedComparison, compare, p_text
from xp.results.evaluation.statistics import bootstrap, interval
from xp.results.report.result import page_figures
from xp.worker.tiny_model import SHIPPED

MARGIN: Final = 0.03
"""Largest difference of mean rewards that counts as none."""
LEVEL: Final = 0.05
"""Level of each one-sided test; together they show equivalence where the 90 % interval lies within the margin."""
CONF: Final = Path(__file__).parents[2] / "conf"
ON_GPUS: Final = (
    "hardware=a100x2",
    "backend.engine.placement=separate",
    "backend.engine.accelerators=1",
    "backend.engine.tensor_parallel=1",
    "backend.parallel.tensor=1",
    "backend.convert_model=false",
)
"""Slime's layout: it takes GPUs only, which `make equivalence-slime` pretends to have."""
FIGURES: Final = {
    "area under the training curve": "area",
    "held-out reward after training": "after",
}


class Verdict(StrEnum):
    """Result of one comparison."""

    EQUIVALENT = "equivalent"
    DIFFERENT = "not equivalent"
    UNDECIDED = "too few seeds to say"


@dataclass(frozen=True)
class Comparison:
    """One figure of two backends, seed by seed; differences are the second's minus the first's."""

    figure: str
    first: str
    second: str
    num_seeds: int
    difference: float
    bootstrap: tuple[float, float] | None
    """95 % interval by resampling seeds; None: all seeds differ alike."""
    interval: tuple[float, float] | None
    """90 % interval (Student's): within the margin where both one-sided tests reject."""
    p_value: float | None
    """Larger p value of the two one-sided tests; None: one seed."""
    margin: float
    verdict: Verdict


def compared(
    figure: str, names: tuple[str, str], pairs: Mapping[int, tuple[float, float]], margin: float
) -> Comparison:
    """Compare two backends.

    Args:
        figure: name of what is compared.
        names: of the backends.
        pairs: seed -> the value of each.
        margin: largest difference that counts as none.
    """
    first, second = ({str(seed): [pair[side]] for seed, pair in pairs.items()} for side in (0, 1))
    found = compare(names, first, second, pass_threshold=1.0, margin=margin)
    if found.stderr:
        bounds = interval(found.difference, found.stderr, found.num_tasks, 1 - 2 * LEVEL)
    else:
        bounds = None
    return Comparison(
        figure=figure,
        first=names[0],
        second=names[1],
        num_seeds=found.num_tasks,
        difference=found.difference,
        bootstrap=bootstrap([[other - one] for one, other in pairs.values()]),
        interval=bounds,
        p_value=found.p_equivalent,
        margin=margin,
        verdict=_verdict(found, bounds),
    )


def _verdict(found: PairedComparison, bounds: tuple[float, float] | None) -> Verdict:
    if found.p_equivalent is not None and found.p_equivalent < LEVEL:
        return Verdict.EQUIVALENT
    if bounds is not None and (bounds[0] > found.margin or bounds[1] < -found.margin):
        return Verdict.DIFFERENT
    return Verdict.UNDECIDED


def comparisons(runs: Mapping[str, Sequence[TrainedRun]], margin: float) -> list[Comparison]:
    """Every figure of every two backends.

    Args:
        runs: backend -> its runs, of the same seeds.
        margin: largest difference that counts as none.
    """
    found = []
    for names in combinations(runs, 2):
        for figure, key in FIGURES.items():
            by_seed = ({run.seed: _value(run, key) for run in runs[name]} for name in names)
            first, second = by_seed
            found.append(
                compared(
                    figure, names, {seed: (first[seed], second[seed]) for seed in first}, margin
                )
            )
    return found


def _value(run: TrainedRun, key: str) -> float:
    if key == "area":
        return run.area
    return run.after.reward_mean


def table(runs: Mapping[str, Sequence[TrainedRun]], found: Sequence[Comparison]) -> str:
    """Markdown: a line for each run, each backend's mean, and each comparison."""
    parts = len(windows(next(iter(runs.values()))[0].rewards))
    names = [
        "backend",
        "seed",
        "held-out before",
        "after",
        "area",
        f"training reward, means of {WINDOW} steps",
    ]
    lines = [f"| {' | '.join(names)} |{' |' * (parts - 1)}", f"|{'---|' * (5 + parts)}"]
    for name, own in runs.items():
        for run in own:
            ends = [
                f"{one.reward_mean:.3f} ± {one.reward_stderr or 0.0:.3f}"
                for one in (run.before, run.after)
            ]
            cells = [name, str(run.seed), *ends, f"{run.area:.3f}", *windows(run.rewards)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append(f"| {name} | mean, sd | {_spread(own)} |{' |' * parts}")
    lines += ["", *_comparison_table(found)]
    return "\n".join(lines)


def _spread(runs: Sequence[TrainedRun]) -> str:
    before = [run.before.reward_mean for run in runs]
    after = [run.after.reward_mean for run in runs]
    return " | ".join(map(_mean_sd, (before, after, [run.area for run in runs])))


def _mean_sd(values: Sequence[float]) -> str:
    if len(values) > 1:
        return f"{fmean(values):.3f}, {stdev(values):.3f}"
    return f"{values[0]:.3f}, -"


def _comparison_table(found: Sequence[Comparison]) -> list[str]:
    names = [
        "figure",
        "difference",
        "95 % bootstrap interval",
        "90 % interval",
        "p of both one-sided tests",
        "verdict",
    ]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for one in found:
        cells = [
            one.figure,
            f"{one.second} - {one.first}: {one.difference:+.4f}",
            _bounds(one.bootstrap),
            _bounds(one.interval),
            p_text(one.p_value).removeprefix("= "),
            f"{one.verdict.value} (margin {one.margin:g}, seeds: {one.num_seeds})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _bounds(bounds: tuple[float, float] | None) -> str:
    if bounds is None:
        return "-"
    return f"{bounds[0]:+.4f} to {bounds[1]:+.4f}"


def sweep_words(
    backend: str, seeds: Sequence[int], outputs: Path, python: str | None, steps: int | None
) -> list[str]:
    """Overrides of a sweep of the embedded default over seeds.

    Args:
        backend: its name.
        seeds: of the runs.
        outputs: outputs root.
        python: the trainer's own interpreter; None: this one.
        steps: rollout steps; None: the default's own number.
    """
    words = [f"backend={backend}", "env=whodunit_mini", f"outputs={outputs}"]
    words += [*ON_GPUS, *shipped_model()] if backend == "slime" else ["hardware=cpu", "model=tiny"]
    words.append(f"seed={','.join(map(str, seeds))}")
    if steps is not None:
        words += [f"training.num_steps={steps}"]
    return words + ([f"backend.runtime.python={python}"] if python is not None else [])


@cache
def shipped_model() -> tuple[str, ...]:
    """Overrides for what `model=tiny` is, as a model that has a directory: Slime takes no other."""
    option = yaml.safe_load((CONF / "model/tiny.yaml").read_text())
    context = f"model.max_context_tokens={option['model']['max_context_tokens']}"
    training = (
        f"training.{name}={'null' if value is None else value}"
        for name, value in option["training"].items()
    )
    return ("model=hf", f"model.path={SHIPPED}", "model.name=tiny", context, *training)


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print and write the result; returns 1 where equivalence is not shown in every figure."""
    options = _parser().parse_args(argv)
    try:
        return _main(options)
    except XpError as error:
        print(f"equivalence: {error}", file=sys.stderr)
        return int(error.code)


def _main(options: argparse.Namespace) -> int:
    sweeps = _sweeps(options)
    if not options.read_only:
        for words in sweeps.values():
            sweep(words)
    runs = {backend: trained_runs(words) for backend, words in sweeps.items()}
    found = comparisons(runs, options.margin)
    _write(options.out or options.outputs / "equivalence", runs, found)
    print(table(runs, found))
    return int(any(one.verdict is not Verdict.EQUIVALENT for one in found))


def _sweeps(options: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> words of each sweep: one a backend, and one more with the overrides of `--against`."""
    pythons = dict(one.split("=", 1) for one in options.python)
    sweeps = {}
    for name in options.backends:
        words = sweep_words(name, options.seeds, options.outputs, pythons.get(name), options.steps)
        sweeps[name] = [*words, *options.overrides]
        if options.against:
            sweeps[f"{name} {options.against[0]}"] = [*sweeps[name], *options.against]
    return sweeps


def _write(
    out: Path, runs: Mapping[str, Sequence[TrainedRun]], found: Sequence[Comparison]
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "runs": {name: [_as_json(run) for run in own] for name, own in runs.items()},
        "comparisons": [asdict(one) for one in found],
    }
    (out / "equivalence.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / "equivalence.md").write_text(table(runs, found) + "\n")
    names = {name: f"{name}, mean of {len(own)} seeds" for name, own in runs.items()}
    draw(
        out / "equivalence.png",
        {names[name]: [run.rewards for run in own] for name, own in runs.items()},
    )
    print(f"written: {out}/equivalence.json, .md, .png")


def _as_json(run: TrainedRun) -> dict[str, Any]:
    results = {"before": page_figures(run.before), "after": page_figures(run.after)}
    return asdict(run) | results | {"area": run.area}


def numbers(text: str) -> list[int]:
    """Whole numbers by comma, of a command line."""
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.equivalence", description=__doc__
    )
    parser.add_argument(
        "--seeds",
        type=numbers,
        default=[1, 2, 3, 4, 5],
        help="by comma; five unless told otherwise",
    )
    parser.add_argument(
        "--backends", type=lambda text: text.split(","), default=["trl", "skyrl"], help="by comma"
    )
    parser.add_argument(
        "--steps", type=int, help="rollout steps of each run; the default's own where not given"
    )
    parser.add_argument(
        "--against",
        type=str.split,
        default=[],
        metavar="OVERRIDES",
        help="compare each backend with itself under these overrides too, all in one word",
    )
    parser.add_argument("--margin", type=float, default=MARGIN)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="BACKEND=PATH",
        help="that trainer's Python",
    )
    parser.add_argument(
        "--outputs", type=Path, default=Path("outputs"), help="outputs root of the runs"
    )
    parser.add_argument(
        "--out", type=Path, help="directory of the result; OUTPUTS/equivalence where not given"
    )
    parser.add_argument(
        "--read-only", action="store_true", help="run nothing: every run must be finished"
    )
    parser.add_argument("overrides", nargs="*", help="overrides for every run, as of python -m xp")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
