"""`python -m xp plan --compare 'KEY=A,B'`: one line for each variant of a plan, with memory, time and price."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from xp.cli.table import show_table, wrapped
from xp.composition import compose
from xp.composition.points import variants_of
from xp.errors import ExitCode, XpError
from xp.lib.text import first_line
from xp.planning.duration import duration, interval_text, wall_s
from xp.planning.memory.estimate import GIB
from xp.planning.memory.fit import MemoryVerdict, fit, works
from xp.planning.plan import build_plan, new_run_id
from xp.spec import RunSpec

COLUMNS: Final = dict.fromkeys(("variant", "fits", "GiB", "s/step", "hours", "USD"), 0)
FITS: Final = {MemoryVerdict.FITS: "yes", MemoryVerdict.LIKELY: "likely"}


def compare_plans(args: Namespace) -> None:
    """Prints the variants; a refused one has its reason below the table.

    Raises:
        XpError: (PLAN) every variant is refused; with the reason's own code where it is the same for all.
    """
    variants: list[dict[str, Any]] = []
    reasons = []
    refusals: list[XpError] = []
    for words in variants_of(args.compare):
        # The ends of keys, so that all columns fit 80 characters.
        pairs = (word.partition("=") for word in words)
        variant: dict[str, Any] = {
            "variant": " ".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs)
        }
        variants.append(variant)
        try:
            spec = compose([*args.overrides, *words], args.config_dir)
            with suppress(ArithmeticError):  # of a refused batch shape
                variant |= _figures(spec)
            build_plan(spec, new_run_id(spec))
        except XpError as error:
            variant["fits"] = "refused"
            reasons.append(f"{variant['variant']}: {first_line(error)}")
            refusals.append(error)
    if len(refusals) == len(variants) and len({str(error) for error in refusals}) == 1:
        raise refusals[0]
    show_table(COLUMNS, variants, as_json=args.json)
    if not args.json:
        print(*(f"{wrapped(reason)}\n" for reason in reasons), sep="", end="")
    if len(refusals) == len(variants):
        raise XpError("every variant is refused; set other values of --compare", ExitCode.PLAN)


def _figures(spec: RunSpec) -> dict[str, str]:
    """Cells from the expected lengths to every episode at its limit."""
    outputs = Path(spec.outputs)
    columns = {}
    if works(spec):
        result = fit(spec, outputs)
        peaks = [
            max(case.training_peak, case.generation_peak) / GIB
            for case in (result.expected, result.worst)
        ]
        columns = {
            "fits": FITS.get(result.verdict, "no"),
            "GiB": f"{interval_text(*peaks)} of {result.capacity / GIB:.0f}",
        }
    step = duration(spec, outputs)
    if step is not None:
        columns["s/step"] = interval_text(step.low, step.high)
        wall = wall_s(spec, step)
        if wall is not None:
            hours = [seconds / 3600 for seconds in wall]
            columns["hours"] = interval_text(*hours)
            price = spec.hardware.usd_per_hour
            if price:
                columns["USD"] = interval_text(*(price * hour for hour in hours))
    return columns
