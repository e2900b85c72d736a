"""What a person sees of a plan and of a finished run, on the terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.errors import ExitCode, XpError

if TYPE_CHECKING:
    from rich.console import Console

    from xp.leaderboard import Line
    from xp.plan import Plan
    from xp.record import RunRecord


def console(*, stderr: bool = False) -> Console:
    """The terminal; plain text where output is not one."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def show_plan(plan: Plan, outputs: Path, *, with_files: bool) -> None:
    """Everything that would run, and nothing of it run."""
    out = console()
    out.print(f"[bold]{title(plan)}[/bold]")
    for line in arithmetic(plan):
        out.print(f"  {line}")
    for stage in plan.stages:
        there = " (there already)" if stage.done is not None and (outputs / stage.done).exists() else ""
        after = f", after {' and '.join(stage.needs)}" if stage.needs else ""
        out.print(f"[bold]{stage.name}[/bold]{after}: {shlex.join(stage.job.argv[:3])}")
        for path in stage.job.outputs:
            out.print(f"  -> {outputs / path}{there}")
    secrets = {name: source for stage in plan.stages for name, source in stage.job.secrets.items()}
    for name, source in secrets.items():
        out.print(f"  secret {name}: from the variable {source}")
    if with_files:
        for stage in plan.stages:
            for path, text in stage.job.files.items():
                out.rule(path)
                out.print(text, markup=False)


def title(plan: Plan) -> str:
    """What the run is, on one line."""
    spec = plan.spec
    mix = "+".join(spec.env.members)
    return (
        f"{mix} · {spec.model.name} · {spec.algorithm.name} · {spec.backend.name} on {spec.hardware.name}"
        f" by {spec.launcher.name} · seed {spec.seed}"
    )


def arithmetic(plan: Plan) -> list[str]:
    """The batch geometry in words."""
    training = plan.spec.training
    episodes = training.prompts_per_step * training.group_size
    updates = training.updates_per_step * training.passes_per_step
    return [
        f"a step: {training.prompts_per_step} tasks x {training.group_size} episodes = {episodes} episodes,"
        f" {updates} optimizer update{'s' if updates > 1 else ''} of {episodes // training.updates_per_step}",
        f"the run: {training.num_steps} steps = {training.num_steps * episodes:,} episodes,"
        f" {training.num_steps * updates:,} updates at learning rate {training.learning_rate:g}",
        f"held out: {plan.spec.evaluation.num_episodes} episodes"
        + (" before and after training" if plan.spec.evaluation.before_training else " after training"),
    ]


def show_summary(plan: Plan, outputs: Path, attempt: int) -> None:
    """The few lines at the end of a run: what was trained, reward before and after, where everything lies."""
    out = console()
    run = outputs / "runs" / plan.run_id
    file = run / f"attempt_{attempt}" / "evaluate" / "evaluation.json"
    results: dict[str, Any] = json.loads(file.read_text())["results"]
    was_trained = any(stage.name == "train" for stage in plan.stages)
    size = f": {arithmetic(plan)[1].removeprefix('the run: ')}" if was_trained else ""
    out.print(f"\n[bold]{'Trained' if was_trained else 'Evaluated'}[/bold] {title(plan)}{size}")
    for name, label in (("before", "before"), ("after", "after ")):
        if name in results:
            out.print(f"  held-out reward {label} {_reward(results[name])}")
    out.print(f"  reward curve  {file.with_name('reward_curve.png')}")
    out.print(f"  model         {run / 'model'}")
    out.print(f"  everything    {run}  (run.json, spec.yaml, metrics.jsonl, attempt_{attempt}/*/log.txt)")


def show_records(outputs: Path) -> None:
    """Every run below the outputs root, oldest first."""
    from xp.record import read_record

    out = console()
    files = sorted((outputs / "runs").glob("*/run.json"), key=lambda path: path.parent.stat().st_ctime)
    for file in files:
        record = read_record(file.parent)
        out.print(f"{record.run_id}  {_status(file.parent, record)}  {_held_out(file.parent)}", markup=False)
    if not files:
        out.print(f"no runs below {outputs / 'runs'}")


def show_lines(lines: Sequence[Line]) -> None:
    """The leaderboard."""
    from dataclasses import fields

    from rich.table import Table

    from xp.leaderboard import Line, readable

    if not lines:
        console().print("no runs")
        return
    table = Table(box=None, pad_edge=False)
    for field in fields(Line):
        table.add_column(field.name, overflow="fold")
    for line in lines:
        table.add_row(*readable(line))
    console().print(table)


def show_record(run: Path) -> None:
    """One run's stages, with exit codes and times; raises XpError(RUN_DIR) where there is no such run."""
    from xp.record import read_record, table

    record = read_record(run)
    out = console()
    out.print(table(record), markup=False)
    if _status(run, record) == KILLED:
        out.print(f"its supervisor was killed; go on with: python -m xp resume={run.name}")


def show_log(outputs: Path, run: Path) -> None:
    """The log of the stage that ran last."""
    from xp.record import read_record

    logs = [stage.log for attempt in read_record(run).attempts for stage in attempt.stages if stage.log]
    if not logs:
        raise XpError(f"{run.name} has no log: no stage of it has started", ExitCode.RUN_DIR)
    print((outputs / logs[-1]).read_text(errors="replace"), end="")


KILLED = "killed"


def _status(run: Path, record: RunRecord) -> str:
    """What the record says, unless it says `running` and nobody runs it any more."""
    from xp.record import Status, is_held

    return KILLED if record.status is Status.RUNNING and not is_held(run) else record.status.value


def _held_out(run: Path) -> str:
    found = sorted(run.glob("attempt_*/evaluate/evaluation.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        return "-"
    results = json.loads(found[-1].read_text())["results"]
    return " -> ".join(f"{results[name]['reward_mean']:.3f}" for name in ("before", "after") if name in results)


def _reward(result: dict[str, Any]) -> str:
    error = "" if result["reward_stderr"] is None else f" ± {result['reward_stderr']:.3f}"
    text = (
        f"[bold]{result['reward_mean']:.3f}[/bold]{error}"
        f" over {result['num_scored']} episodes, {result['perfect_share']:.0%} with full reward"
    )
    return f"{text}, {result['num_void']} void" if result["num_void"] else text
