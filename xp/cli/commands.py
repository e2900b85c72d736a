"""What each word of the command line does."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xp.cli.run_plans import run_plan, run_plans
from xp.compose import compose, compose_sweep, to_yaml
from xp.compose.known_names import unread_variables
from xp.errors import ExitCode, XpError
from xp.planning.plan import (
    Plan,
    build_again,
    build_evaluation,
    build_model_evaluation,
    build_plan,
    build_preparation,
    new_run_id,
)
from xp.runs.resume import Resumed, spec_to_resume, split_off
from xp.spec import RunSpec
from xp.spec.section import local_path


@dataclass(frozen=True)
class Request:
    """A command line, read."""

    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...]
    is_sweep: bool
    with_files: bool
    as_json: bool
    again: bool
    trials: int
    python: str | None = None
    for_run: bool = False


def run(request: Request) -> int:
    """Plan everything, refuse what is illegal, then run it: one run, or one after the other for a sweep."""
    return run_plans(_plans(request))


def prepare(request: Request) -> int:
    """Task preparation alone; where the model is on this machine, its chat template is held against the tasks."""
    from xp.doctor.template import hold_against_tasks

    plans = [build_preparation(spec, new_run_id(spec)) for spec in _specs(request)]
    code = run_plans(plans, is_whole=False)
    hold_against_tasks([plan.spec for plan in plans])
    return code


def evaluate(request: Request) -> int:
    """Held-out episodes with a run's model (`run=RUN`), its checkpoint of a step (`checkpoint=STEP`), or the spec's."""
    given, overrides = split_off(("run", "checkpoint"), request.overrides)
    step = given.get("checkpoint")
    if "run" not in given:
        if step is not None:
            raise XpError("checkpoint=STEP is one of a run: give run=RUN; python -m xp runs list names the runs")
        specs = _specs(request)
        return run_plans([build_model_evaluation(spec, new_run_id(spec)) for spec in specs])
    if step is not None and not step.isdigit():
        raise XpError(f"checkpoint={step}: a rollout step is a whole number")
    resumed = spec_to_resume(given["run"], overrides)

    def asked(attempt: int) -> Plan:
        return build_evaluation(resumed.spec, resumed.run_id, attempt, None if step is None else int(step))

    run_plan(asked(resumed.attempt), is_whole=True, again=True, replan=asked)
    return ExitCode.OK


def plan(request: Request) -> int:
    """Show what would run."""
    from xp.cli.display import arithmetic, console, show_plan

    plans = _plans(request)
    if request.as_json:
        print("[" + ",".join(p.to_json() for p in plans) + "]" if request.is_sweep else plans[0].to_json(), end="")
        return ExitCode.OK
    if request.is_sweep:
        out = console()
        for one in plans:
            out.print(f"{one.run_id}  seed {one.spec.seed}  {arithmetic(one)[1]}")
        task_sets = {stage.job.outputs for one in plans for stage in one.stages if stage.name == "prepare"}
        out.print(f"{len(plans)} runs, {len(task_sets)} task set{'s' if len(task_sets) != 1 else ''}")
        return ExitCode.OK
    show_plan(plans[0], Path(plans[0].spec.outputs), with_files=request.with_files)
    return ExitCode.OK


def tasks(arguments: Sequence[str]) -> int:
    """The task store: list, show, verify, prune."""
    from xp.cli.tasks import main

    rest, outputs = _outputs_of(arguments)
    return main(list(rest), outputs)


def runs(arguments: Sequence[str]) -> int:
    """Runs by their records: list, show one, follow its log, stop it, go on with it, trust it, or compare them."""
    from xp.cli.display import show_lines
    from xp.cli.runs import cancel, logs, show, show_all, trust
    from xp.runs.leaderboard import as_csv, as_markdown, leaderboard
    from xp.runs.record import directory_of

    rest, outputs = _outputs_of(arguments)
    match list(rest):
        case [] | ["list"]:
            show_all(outputs)
        case ["show", name]:
            show(directory_of(outputs, name))
        case ["logs", name]:
            logs(outputs, directory_of(outputs, name))
        case ["cancel", name]:
            print(cancel(directory_of(outputs, name)))
        case ["trust", name]:
            print(trust(directory_of(outputs, name)))
        case ["resume", name, *overrides]:
            resumed = spec_to_resume(name, [*overrides, f"outputs={outputs}"])
            return run_plans([_again(resumed)])
        case ["compare", "--csv", *names]:
            print(as_csv(leaderboard(outputs, names)), end="")
        case ["compare", "--markdown", *names]:
            print(as_markdown(leaderboard(outputs, names)), end="")
        case ["compare", *names]:
            show_lines(leaderboard(outputs, names))
        case _:
            raise XpError(
                "python -m xp runs list | show RUN | logs RUN | cancel RUN | resume RUN [key=value ...]"
                " | trust RUN | compare [--csv | --markdown] [RUN ...] [outputs=DIR]"
            )
    return ExitCode.OK


def search(request: Request) -> int:
    """Let Optuna look within the given ranges for what ends in the highest held-out reward, one run after the other."""
    from xp.compose.search import search as run_trials
    from xp.runs.sweep import held_out_reward

    digest = hashlib.sha256("\n".join(sorted(request.overrides)).encode()).hexdigest()[:12]
    directory = _outputs_of(request.overrides)[1] / "searches" / digest

    def reward(spec: RunSpec) -> float:
        run_plans(_sweep_plans([spec], again=request.again))
        return held_out_reward(spec)

    run_trials(request.overrides, request.config_dirs, directory, request.trials, reward)
    print(f"the best of all trials: {directory / 'optimization_results.yaml'}")
    return ExitCode.OK


def install(request: Request) -> int:
    """Make the Python that the spec's trainer needs."""
    from xp.cli.install import cannot_run_here, why_not
    from xp.cli.install import install as make

    spec = compose(request.overrides, request.config_dirs)
    if request.for_run and (reason := cannot_run_here(spec)):
        print(f"nothing installed: {reason}")
        return ExitCode.OK
    python = make(spec, request.python)
    print(f"nothing to install: {why_not(spec)}" if python is None else f"installed: {python}")
    return ExitCode.OK


def parity(request: Request) -> int:
    """What each backend receives of every field."""
    from xp.cli.parity import lines, refused, rows, specs_of

    specs = specs_of(request.overrides, request.config_dirs)
    print("\n".join(lines(rows(specs))))
    for name, reasons in refused(specs).items():
        print(f"{name} refuses this spec: {'; '.join(reasons)}")
    return ExitCode.OK


def explain(request: Request) -> int:
    """Value, origin, meaning and rendering of keys: `explain KEY ... [overrides]`."""
    from xp.cli.explain import explain as explained
    from xp.cli.parity import specs_of

    keys = [text for text in request.overrides if "=" not in text]
    overrides = [text for text in request.overrides if "=" in text]
    if not keys:
        raise XpError("explain takes a key: python -m xp explain algorithm.kl_estimator [overrides]")
    spec = compose(overrides, request.config_dirs)
    specs = specs_of(overrides, request.config_dirs)
    for key in keys:
        print("\n".join(explained(key, spec, specs, overrides, request.config_dirs)))
    return ExitCode.OK


def doctor(request: Request) -> int:
    """Hold this machine against the plan; the exit code is that of the first fault."""
    from xp.doctor import examine, exit_code

    findings = []
    for finding in examine(compose(request.overrides, request.config_dirs)):
        print(finding, flush=True)
        findings.append(finding)
    return exit_code(findings)


def show_config(request: Request) -> int:
    """The composed configuration as YAML."""
    print(to_yaml(compose(request.overrides, request.config_dirs)), end="")
    return ExitCode.OK


def env(arguments: Sequence[str]) -> int:
    """Environments: check one, or each of a mix."""
    from xp.cli.env_check import env_command

    return env_command(arguments)


COMMANDS: Mapping[str, Callable[..., int]] = {
    "run": run,
    "plan": plan,
    "prepare": prepare,
    "evaluate": evaluate,
    "search": search,
    "install": install,
    "parity": parity,
    "explain": explain,
    "doctor": doctor,
    "tasks": tasks,
    "runs": runs,
    "env": env,
}


def _plans(request: Request) -> list[Plan]:
    for line in unread_variables(os.environ):
        print(f"xp: note: {line}", file=sys.stderr)
    given, overrides = split_off(("resume",), request.overrides)
    if "resume" in given:
        if request.is_sweep:
            raise XpError("resume=RUN goes on with one run; it is no sweep")
        resumed = spec_to_resume(given["resume"], overrides)
        return [_again(resumed)]
    specs = _specs(request)
    if request.is_sweep:
        return _sweep_plans(specs, again=request.again)
    return [build_plan(spec, new_run_id(spec)) for spec in specs]


def _again(resumed: Resumed) -> Plan:
    return build_again(resumed.spec, resumed.run_id, resumed.attempt, resumed.stages)


def _specs(request: Request) -> list[RunSpec]:
    """The one of the command line, or every point of a sweep."""
    if request.is_sweep:
        return [point.spec for point in compose_sweep(request.overrides, request.config_dirs)]
    return [compose(request.overrides, request.config_dirs)]


def _sweep_plans(specs: Sequence[RunSpec], *, again: bool) -> list[Plan]:
    """All points are planned before the first one runs, so that illegal ones refuse the sweep, each with its reason."""
    from xp.cli.display import console
    from xp.runs.sweep import open_points

    todo, left = open_points(specs, again=again)
    for entry in left:
        console().print(f"{entry.run_id}  is {entry.standing.value}, left alone (--again runs it anew)")
    plans: list[Plan] = []
    faults: dict[str, ExitCode] = {}
    for point in todo:
        try:
            plans.append(build_plan(point.spec, point.run_id or new_run_id(point.spec), point.attempt))
        except XpError as error:
            faults |= dict.fromkeys(str(error).splitlines(), error.code)
    if faults:
        raise XpError("\n".join(faults), next(iter(faults.values())))
    return plans


def _outputs_of(arguments: Sequence[str]) -> tuple[list[str], Path]:
    rest = [text for text in arguments if not text.startswith("outputs=")]
    given = [text.partition("=")[2] for text in arguments if text.startswith("outputs=")]
    try:
        return rest, Path(local_path(given[-1]) if given else "outputs")
    except ValueError as error:
        raise XpError(f"outputs: {error}") from None
