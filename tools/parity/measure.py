"""`python -m tools.parity`: one recorded batch through each trainer's code, compared with float64 formulas."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tools.parity.options import (
    BASE,
    CRITIC_SCALE,
    NOT_MEASURED,
    OF_BACKEND,
    OPTIONS,
    REPORTED,
    Option,
)
from tools.parity.recorded import BAR, CriticRule, DistillRule, ParityCase, UpdateRule, Work
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.backend import backend_of, spec_refusals
from xp.spec import RunSpec
from xp.worker.places import RunPaths
from xp.worker.tiny_model import SHIPPED

PROGRAMS = {name: f"tools.parity.{name}_program" for name in ("trl", "skyrl", "slime", "tinker")}
ROOT = Path(__file__).resolve().parents[2]
TRAINERS = {"trl": "trl", "skyrl": "skyrl", "slime": "sglang", "tinker": "flax"}
"""Backend -> module that its Python must have."""
PLACES = RunPaths(run="runs/parity", attempt=1, tasks="tasks/parity")
SKIPPED = "not measured"
Cell = dict[str, Any]
"""Differences by name; or `refused`, SKIPPED, `fault` or `missing`, with a sentence."""


@dataclass(frozen=True)
class ParityMeasure:
    """Result of the whole measurement."""

    overrides: tuple[str, ...]
    options: Mapping[str, Mapping[str, Cell]]
    """Option -> backend -> cell."""

    def to_json(self) -> str:
        whole = {
            "bar": BAR,
            "overrides": self.overrides,
            "options": self.options,
            "not measured": NOT_MEASURED,
        }
        return json.dumps(whole, indent=1) + "\n"


def measure(
    overrides: Sequence[str],
    backends: Sequence[str],
    pythons: Mapping[str, str],
    options: Sequence[Option] = OPTIONS,
) -> ParityMeasure:
    """Measures options on backends.

    Args:
        overrides: overrides of the spec, after the measurement's own.
        backends: names of backends.
        pythons: backend -> interpreter; other backends use their spec's, or this one.
        options: what is measured.

    Raises:
        XpError: a backend cannot be measured, or a spec does not compose.
    """
    unknown = sorted({*backends, *pythons} - set(PROGRAMS))
    if unknown:
        raise XpError(
            f"parity measure: {', '.join(unknown)} cannot be measured; expected {', '.join(PROGRAMS)}"
        )
    by_backend = {
        name: _of_backend(name, overrides, pythons.get(name), options) for name in backends
    }
    return ParityMeasure(
        tuple(overrides),
        {option.name: {n: by_backend[n][option.name] for n in backends} for option in options},
    )


def spec_of(option: Option, backend: str, overrides: Sequence[str]) -> RunSpec:
    """Spec of an option on a backend; raises XpError if it does not compose."""
    own = () if backend == "skyrl" else (f"training.adam_eps={option.adam_eps}",)
    last = (*option.overrides, *option.of_backend.get(backend, ()))
    return compose(
        [f"backend={backend}", *own, *BASE, *OF_BACKEND.get(backend, ()), *overrides, *last]
    )


def case_of(option: Option, spec: RunSpec) -> ParityCase:
    """Input of the backend's program for one option."""
    job = next(
        stage.job for stage in backend_of(spec).render(spec, PLACES) if stage.name == "train"
    )
    config = next(text for path, text in job.files.items() if path.endswith("/train/config.json"))
    sections = {**spec.training.model_dump(mode="json"), **spec.algorithm.model_dump(mode="json")}
    sections["adam_eps"] = option.adam_eps
    sections["loss_length"] = spec.algorithm.loss_length or spec.training.max_response_tokens
    if sections["critic"] is not None:
        sections["critic"] = CriticRule(**sections["critic"], scale=CRITIC_SCALE[spec.backend.name])
    for name in ("overlong", "sapo"):
        sections[name] = sections[name] and tuple(sections[name].values())
    distill = spec.algorithm.distill
    if distill is not None:
        sections["distill"] = DistillRule(distill.coef, distill.beside_reward)
    rule = UpdateRule(**{field.name: sections[field.name] for field in fields(UpdateRule)})
    num_updates = spec.training.updates_per_step * spec.training.passes_per_step
    lora = spec.model.lora
    scale = None if lora is None else lora.alpha / lora.rank
    num_ranks = max(1, spec.hardware.accelerators_per_node)
    return ParityCase(option.name, rule, num_updates, num_ranks, scale, option.precision, config)


def _of_backend(
    name: str, overrides: Sequence[str], python: str | None, options: Sequence[Option]
) -> dict[str, Cell]:
    """Option -> cell; a spec that the backend refuses is not a fault."""
    cells: dict[str, Cell] = {}
    cases = []
    for option in options:
        try:
            spec = spec_of(option, name, overrides)
        except XpError as error:
            cells[option.name] = {"refused": str(error).splitlines()[0]}
            continue
        refusals = spec_refusals(spec)
        if refusals:
            cells[option.name] = {"refused": str(refusals[0])}
            continue
        reason = option.not_on.get(name)
        if reason:
            cells[option.name] = {SKIPPED: reason}
            continue
        python = python or spec.backend.runtime.python or sys.executable
        cases.append(case_of(option, spec))
    if not cases:
        return cells
    found = _run(name, python or sys.executable, Work(str(SHIPPED), tuple(cases)))
    return cells | {case.name: found[case.name] for case in cases}


def _run(backend: str, python: str, work: Work) -> dict[str, Cell]:
    """Runs the backend's program in its own Python."""
    words = [
        python,
        "-c",
        f"import importlib.util as u; raise SystemExit(u.find_spec({TRAINERS[backend]!r}) is None)",
    ]
    try:
        is_there = subprocess.run(words, check=False, capture_output=True).returncode == 0
    except OSError:
        is_there = False
    if not is_there:
        missing = f"{python} has no {TRAINERS[backend]}: --python {backend}=PATH names the one that has it"
        return {case.name: {"missing": missing} for case in work.cases}
    with tempfile.TemporaryDirectory(prefix="xp-parity-") as scratch:
        given, result, log = (Path(scratch, name) for name in ("work.json", "result.json", "log"))
        given.write_text(work.to_json(), encoding="utf-8")
        with log.open("w") as out:
            command = [python, "-W", "ignore", "-m", PROGRAMS[backend], str(given), str(result)]
            done = subprocess.run(
                command, check=False, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
            )
        if done.returncode == ExitCode.RUNTIME:
            return {
                case.name: {"missing": log.read_text().strip().splitlines()[-1]}
                for case in work.cases
            }
        if done.returncode or not result.exists():
            raise XpError(
                f"parity measure: {backend}'s program ended with {done.returncode}:\n{log.read_text()[-2000:]}",
                ExitCode.STAGE_FAILED,
            )
        found: dict[str, Cell] = json.loads(result.read_text())
        return found


def largest(cell: Cell) -> float | None:
    """Largest difference of a cell; None if nothing was measured."""
    values = [value for value in cell.values() if isinstance(value, float)]
    return max(values) if values else None


def shown(cell: Cell) -> str:
    """Short text of a cell."""
    value = largest(cell)
    if value is None:
        return next(iter(cell))
    return f"{value:.0e}"


def unexplained(measured: ParityMeasure) -> list[str]:
    """Lines about faults, trainers that are not installed, and unexplained differences above the bar."""
    why = {option.name: option.why for option in OPTIONS}
    found = []
    for option, cells in measured.options.items():
        for backend, cell in cells.items():
            value = largest(cell)
            if value is None:
                found += [
                    f"{backend}, {option}: {text}"
                    for kind, text in cell.items()
                    if kind not in ("refused", SKIPPED)
                ]
            elif value > BAR and backend not in why.get(option, {}):
                found.append(
                    f"{backend}, {option}: the update differs by {value:.1e}; expected at most {BAR:g}"
                )
    for (backend, metric), by_option in reported(measured).items():
        for option, value in by_option.items():
            if value > BAR and reason_of(backend, metric, option) is None:
                what = f"{backend}, {option}: it reports another {metric}"
                found.append(f"{what}, which differs by {value:.1e}; expected at most {BAR:g}")
    return found


def reported(measured: ParityMeasure) -> dict[tuple[str, str], dict[str, float]]:
    """Backend and metric -> option -> relative difference from the reference, where the updates are the same."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    why = {option.name: option.why for option in OPTIONS}
    for option, cells in measured.options.items():
        for backend, cell in cells.items():
            if backend in why.get(option, {}):
                continue
            for metric, (own, wanted, scale) in cell.get("reported", {}).items():
                found.setdefault((backend, metric), {})[option] = abs(own - wanted) / scale
    return found


def reason_of(backend: str, metric: str, option: str) -> str | None:
    """Reason why a metric of an option has another value; None: there is none."""
    rules = REPORTED.get((backend, metric), {})
    return next((reason for word, reason in rules.items() if word in option), None)


def table(measured: ParityMeasure) -> list[str]:
    """Lines for a terminal."""
    backends = list(dict.fromkeys(name for cells in measured.options.values() for name in cells))
    width = max(map(len, measured.options))
    lines = ["".join([" " * width, *(f"{name:>10}" for name in backends)])]
    for option, cells in measured.options.items():
        lines.append(
            "".join([f"{option:{width}}", *(f"{shown(cells[name]):>10}" for name in backends)])
        )
    return lines


def section(file: Path) -> list[str]:
    """The part of docs/parity.md about a file of measurements; empty if there is no file."""
    if not file.exists():
        return []
    said = json.loads(file.read_text(encoding="utf-8"))
    measured = ParityMeasure(tuple(said["overrides"]), said["options"])
    backends = list(next(iter(measured.options.values())))
    why = {option.name: option.why for option in OPTIONS}
    lines = [
        "## Measured",
        "",
        "`make parity-measure` sends one recorded batch (16 episodes of four groups, with tools' results, three void"
        " and two truncated episodes) through each trainer's own code: advantages, loss,",
        "gradient of every parameter, learning rate of each update, parameters after the first and after all updates."
        " A cell is the largest of these differences from the papers' formulas in float64,",
        f"relative to them; the bar is {BAR:g}. All figures: `tools/parity/{file.name}`. The weights are float64 and"
        " AdamW's epsilon 1e-4, except in the last row.",
        "",
        "| option | " + " | ".join(backends) + " |",
        "|---|" + "---|" * len(backends),
    ]
    for option, cells in measured.options.items():
        shown_cells = [
            _with_reason(cells[name], why.get(option, {}).get(name)) for name in backends
        ]
        lines.append(f"| {option} | " + " | ".join(shown_cells) + " |")
    lines += _of_metrics(measured, backends)
    kept = [f"* {what}: {reason}." for what, reason in said["not measured"].items()]
    return [*lines, "", "Not measured:", "", *kept, ""]


def _of_metrics(measured: ParityMeasure, backends: Sequence[str]) -> list[str]:
    """Table of the metrics that the trainers report."""
    found = reported(measured)
    lines = [
        "",
        "What is reported of the updates (a mean over them): the largest relative difference from the papers' values"
        " of the same updates, over all options; a loss is relative to the sum of its absolute parts. Empty: not"
        " reported.",
        "",
        "| metric | " + " | ".join(backends) + " |",
        "|---|" + "---|" * len(backends),
    ]
    for metric in dict.fromkeys(metric for _, metric in found):
        cells = [_of_metric(name, metric, found.get((name, metric), {})) for name in backends]
        lines.append(f"| `{metric}` | " + " | ".join(cells) + " |")
    return lines


def _of_metric(backend: str, metric: str, by_option: Mapping[str, float]) -> str:
    reasons = {option: reason_of(backend, metric, option) for option in by_option}
    exact = [value for option, value in by_option.items() if reasons[option] is None]
    shown_reasons = dict.fromkeys(reason for reason in reasons.values() if reason is not None)
    return "; ".join([*([f"{max(exact):.0e}"] if exact else []), *shown_reasons])


def _with_reason(cell: Cell, reason: str | None) -> str:
    value = largest(cell)
    if reason is not None and value is not None and value > BAR:
        return f"{shown(cell)}: {reason}"
    return shown(cell)
