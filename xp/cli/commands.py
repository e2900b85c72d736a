"""One function for each command."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from xp.cli.run_plans import (
    command_of,
    config_words,
    open_plans,
    plans_of,
    plans_of_sweep,
    points_of,
    recorded_run,
    run_plans,
)
from xp.cli.table import print_json, wrapped
from xp.composition import Point, compose, to_yaml
from xp.errors import ExitCode, XpError
from xp.execution.named import outputs_of
from xp.lib.digest import text_digest
from xp.lib.facts import one_reading
from xp.lib.text import counted
from xp.planning.plan import Plan, build_preparation, build_sft, new_run_id
from xp.spec import RunSpec


def run(args: Namespace) -> int:
    """Plans all runs, refuses illegal ones, then runs them in order."""
    if args.cfg:
        return show_config(args)
    if not args.multirun:
        if args.again:
            raise XpError(
                "--again runs points of a sweep again: add -m; without it, each run is new"
            )
        recorded = recorded_run(args, args.overrides)
        if recorded is not None:
            from xp.cli.reproduce import run_recorded

            return run_recorded(recorded, args)
        return run_plans(plans_of(args), has_panel=not args.lines)
    from xp.cli.compare import compare_existing
    from xp.execution.sweep import write_sweep

    plans, left = plans_of_sweep(args)
    outputs = outputs_of(args.overrides)
    runs = [*left, *plans.run_ids]
    write_sweep(outputs, args.overrides, runs)
    try:
        return run_plans(plans, plans.names, has_panel=not args.lines, resume=_again("-m", args))
    finally:
        compare_existing(outputs, runs)


def _again(words: str, args: Namespace) -> str:
    """The same command once more, which continues a sweep or a search; without --again, which would begin anew."""
    return f"python -m xp {words} {shlex.join([*args.overrides, *config_words(args)])}"


def _planned(args: Namespace, point: Point, build: Callable[[RunSpec, str], Plan]) -> Plan:
    """Plans one point, with the command line that runs it."""
    return replace(build(point.spec, new_run_id(point.spec)), command=command_of(args, point))


def prepare(args: Namespace) -> int:
    """Prepares tasks; checks the model's chat template against them if the model is on this machine."""
    from xp.checks.doctor.template import check_template_on_tasks

    points = points_of(args)
    plans = [_planned(args, point, build_preparation) for point in points]
    code = run_plans(plans, [point.name for point in points])
    check_template_on_tasks([plan.spec for plan in plans])
    return code


def sft(args: Namespace) -> int:
    """Fine-tunes on episodes, and plays the held-out tasks with the model before and after."""
    points = points_of(args)
    plans = [_planned(args, point, build_sft) for point in points]
    return run_plans(plans, [point.name for point in points])


@one_reading()
def plan(args: Namespace) -> int:
    """Prints the plan and runs nothing."""
    from xp.cli.display import arithmetic, console, plan_json, show_plan
    from xp.planning.duration import time_lines

    if args.cfg:
        return show_config(args)
    if args.compare:
        from xp.cli.compare_plans import compare_plans

        compare_plans(args)
        return ExitCode.OK
    if args.sft:
        plans: Sequence[Plan] = [_planned(args, point, build_sft) for point in points_of(args)]
    else:
        plans = plans_of(args)
    if args.native or args.native_diff is not None:
        from xp.cli.explain import show_native

        if len(plans) > 1:
            raise XpError(
                f"--native shows one plan, and the sweep has {len(plans)} points; give each key one value"
            )
        show_native(args, plans[0])
        return ExitCode.OK
    if args.json:
        texts = map(plan_json, plans)
        print("[" + ",".join(texts) + "]" if args.multirun else next(texts), end="")
        return ExitCode.OK
    if args.multirun:
        out = console()
        task_sets = set()
        for planned in plans:
            out.print(f"{planned.run_id}  seed {planned.spec.seed}  {arithmetic(planned)[1]}")
            task_sets |= {stage.job.outputs for stage in planned.stages if stage.name == "prepare"}
        out.print(f"{counted(len(plans), 'run')}, {counted(len(task_sets), 'task set')}")
        specs = [planned.spec for planned in plans]
        for line in time_lines(specs, Path(specs[0].outputs)):
            out.print(wrapped(line))
        return ExitCode.OK
    show_plan(plans[0], Path(plans[0].spec.outputs), with_files=args.files)
    return ExitCode.OK


def search(args: Namespace) -> int:
    """Searches the given ranges with Optuna for the highest held-out reward, one run after the other."""
    from xp.composition.search import search as run_trials
    from xp.execution.sweep import held_out_reward, write_sweep

    digest = text_digest("\n".join(sorted(args.overrides)))[:12]
    outputs = outputs_of(args.overrides)
    directory = outputs / "searches" / digest

    def reward(point: Point) -> float:
        plans, left = open_plans([point], args)
        write_sweep(outputs, args.overrides, [*left, *plans.run_ids])
        run_plans(plans, resume=_again(f"search --trials {args.trials}", args))
        return held_out_reward(point.spec)

    run_trials(args.overrides, args.config_dir, directory, args.trials, reward)
    print(f"the best of all trials: {directory / 'optimization_results.yaml'}")
    return ExitCode.OK


def doctor(args: Namespace) -> int:
    """Checks this machine against the plan; the exit code is that of the first fault."""
    from xp.checks.doctor import examine, exit_code
    from xp.planning.refusals import check_model_files

    spec = compose(args.overrides, args.config_dir)
    findings = []
    check_model_files(spec)
    for finding in examine(spec, args.slots):
        if not args.json:
            print(wrapped(str(finding)), flush=True)
        findings.append(finding)
    if args.json:
        print_json(findings)
    return exit_code(findings)


def show_config(args: Namespace) -> int:
    """Prints the composed configuration as YAML, or one section of it."""
    import yaml

    text = to_yaml(compose(args.overrides, args.config_dir))
    if args.package is None:
        print(text, end="")
        return ExitCode.OK
    node = yaml.safe_load(text)
    for part in args.package.split("."):
        if not isinstance(node, dict):
            node = {}
        if part not in node:
            known = ", ".join(node) or "no keys"
            raise XpError(f"--package {args.package}: no section {part}; there are: {known}")
        node = node[part]
    print(yaml.safe_dump(node, sort_keys=False, allow_unicode=True), end="")
    return ExitCode.OK
