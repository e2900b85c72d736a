"""Terminal output for plans and finished runs."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.cli.table import labelled_environment, wrapped
from xp.episode.metrics import FULL_REWARD
from xp.episode.metrics_file import read_metrics
from xp.errors import XpError
from xp.execution.health import EpisodeCount
from xp.execution.held_out import HeldOutResult, held_out
from xp.execution.record import read_record, time_text
from xp.execution.resume import other_length_lines
from xp.execution.run_directory import xp_command
from xp.execution.tracking.base import known, tracked_places
from xp.lib.facts import one_reading
from xp.lib.terminal import Redrawn, shown
from xp.lib.text import counted, first_line
from xp.planning.episode import named_code
from xp.results.evaluation.statistics import interval_of
from xp.tasks.profile import pass_share
from xp.worker.tiny_model import PLACE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from xp.planning.plan import Plan
    from xp.spec import RunSpec

RATE = "training/learning_rate"
MADE = {"episodes/num": "episode", "training/updates": "update"}
"""Metrics of the summary -> word for what their sum counts."""


def console(*, stderr: bool = False) -> Console:
    """Console for output: styled on a terminal, else plain text.

    Texts have no colours of their own, and brackets and colons in them are not markup: paths may have them. A notebook
    gets the same text, as of any command.
    """
    from rich.console import Console

    class OfTexts(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(
                *(shown(value) if isinstance(value, str) else value for value in objects), **options
            )

    return OfTexts(
        stderr=stderr,
        highlight=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
        force_jupyter=False,
    )


def headed(head: str, rest: str) -> Text:
    """A line with a bold beginning."""
    from rich.text import Text

    return Text.assemble((shown(head), "bold"), shown(rest))


def live_console() -> Console:
    """Console for output that is redrawn: it allows moves of the cursor, which `console` escapes."""
    from rich.console import Console

    return Console(file=Redrawn(sys.stdout), highlight=False)  # type: ignore[arg-type]


@one_reading()
def show_plan(plan: Plan, outputs: Path, *, with_files: bool) -> None:
    """Prints a plan without running it."""
    from xp.planning.backend import backend_of, extra_plan_lines
    from xp.planning.duration import disk_line, sft_time_lines, time_lines
    from xp.planning.memory.fit import memory_lines
    from xp.planning.refusals import check_model_files, machine_line
    from xp.planning.row_files import row_lines
    from xp.planning.size_lines import held_out_lines, profile_lines

    out = console()
    out.print(title(plan), style="bold")
    lines = [machine_line(plan.spec), *arithmetic(plan), *sft_time_lines(plan.spec, outputs)]
    if plan.trains:
        lines += [
            *time_lines([plan.spec], outputs),
            *extra_plan_lines(plan.spec, outputs),
            *disk_line(plan.spec),
        ]
    lines += [*memory_lines(plan.spec, outputs, trains=plan.trains), *notice_lines(plan)]
    try:
        check_model_files(plan.spec)
    except XpError as error:
        lines.append(f"this plan cannot run yet: {first_line(error)}")
    lines += [*row_lines(plan.spec), *held_out_lines(plan.spec, outputs), *profile_lines(plan.spec)]
    for line in lines:
        out.print(wrapped(f"  {line}"))
    for stage in plan.stages:
        there = ""
        if stage.done is not None and (outputs / stage.done).exists():
            there = " (there already)"
        when = ""
        if stage.made_in:
            when = f", played in the {stage.made_in} stage; only if that did not finish"
        elif stage.needs:
            when = f", after {' and '.join(stage.needs)}"
        argv = stage.job.argv
        last = max((at for at, word in enumerate(argv) if word == "-m"), default=1)
        out.print(headed(stage.name, f"{when}: {shlex.join(argv[: last + 2])}"))
        for path in stage.job.outputs:
            out.print(f"  -> {outputs / path}{there}")
    secrets = {name: source for stage in plan.stages for name, source in stage.job.secrets.items()}
    unset = ", which has no value here: export it, or set it in .env"
    lines = [
        f"secret {name}: from the variable {source}{'' if known([source]) else unset}"
        for name, source in secrets.items()
    ]
    endpoints = backend_of(plan.spec).unauthenticated_endpoints(plan.spec)
    lines += [*named_code(plan.spec), *(f"open: {endpoint}" for endpoint in endpoints)]
    if not with_files:
        lines += files_lines(plan.spec)
    for line in lines:
        out.print(wrapped(f"  {line}"))
    if with_files:
        for stage in plan.stages:
            for path, text in stage.job.files.items():
                out.rule(path)
                out.print(text)
        for path, text in submitted(plan, outputs).items():
            out.rule(f"{path}, as launcher={plan.spec.launcher.name} would submit it")
            out.print(text)


def files_lines(spec: RunSpec) -> list[str]:
    """A line for a place of the run or a tracker that is not this machine's own, which points to the whole texts."""
    from xp.spec import LauncherName

    names = [f"tracking={name}" for name in spec.tracking]
    if spec.launcher.name != LauncherName.LOCAL:
        names.insert(0, f"launcher={spec.launcher.name}")
    if names:
        return [f"{' and '.join(names)}: --files shows every file of the jobs"]
    return []


def plan_json(plan: Plan) -> str:
    """A plan as JSON, with its estimates of memory and time, which are not part of the plan, since they depend on the
    outputs root."""
    from xp.planning.duration import duration
    from xp.planning.memory.fit import memory_json

    outputs = Path(plan.spec.outputs)
    step = duration(plan.spec, outputs)
    content = json.loads(plan.to_json())
    content["memory"] = memory_json(plan.spec, outputs, trains=plan.trains)
    content["step_s"] = step and asdict(step)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def submitted(plan: Plan, outputs: Path) -> Mapping[str, str]:
    """Files that the launcher would submit: path -> text; empty if the launcher starts the jobs itself."""
    from xp.execution.launchers.base import Context, PreviewLauncher, StageContext, make_launcher

    launcher = make_launcher(plan.spec.launcher, outputs)
    if not isinstance(launcher, PreviewLauncher):
        return {}
    directory = f"runs/{plan.run_id}/attempt_{plan.attempt}"
    context = Context(plan.run_id, plan.attempt, outputs.absolute(), directory)
    return launcher.preview([StageContext(stage, context) for stage in plan.stages])


def title(plan: Plan) -> str:
    """One line about the run."""
    spec = plan.spec
    mix = "+".join(spec.env.members)
    return (
        f"{mix} · {spec.model.name} · {spec.algorithm.name} · {spec.backend.name} on {spec.hardware.name}"
        f" by {spec.launcher.name} · seed {spec.seed}"
    )


def notice_lines(plan: Plan) -> list[str]:
    """Important facts about a run: replaced parts, and commands without isolation."""
    from xp.fields.support import value_warnings
    from xp.planning.backend import backend_of, untried_lines
    from xp.planning.refusals import launcher_lines, sandbox_lines
    from xp.spec.hardware import gpu_cells

    lines = []
    replaced = dict.fromkeys(stub for stage in plan.stages for stub in stage.job.stubs)
    if replaced:
        lines.append(f"stubs in place of real parts: {', '.join(replaced)}")
    lines += [
        *sandbox_lines(plan.spec),
        *value_warnings(plan.spec),
        *untried_lines(plan.spec),
        *launcher_lines(plan.spec.launcher, plan.stages),
    ]
    backend = backend_of(plan.spec)
    if hasattr(backend, "override_lines"):
        lines += backend.override_lines(plan.spec)
    if plan.spec.hardware.accelerator == "cpu":
        unused = gpu_cells("name", "index")
        if unused:
            lines.append(
                f"this machine has {len(unused)} x {unused[0][0]}; hardware=auto trains on GPUs"
            )
    return [*lines, *_strange_tools(plan.spec), *other_length_lines(plan)]


def _strange_tools(spec: RunSpec) -> list[str]:
    """A warning for a made model in environments that it was not warmed up on: it calls their tools never."""
    other_envs = [
        name
        for name, member in spec.env.members.items()
        if member.serve != "xp.envs.builtin.whodunit_mini:WhodunitMini"
    ]
    is_taught = spec.sft.data is not None or spec.training.initial_checkpoint is not None
    if spec.model.path != PLACE or is_taught or not other_envs:
        return []
    return [
        f"model={spec.model.name} knows the game of whodunit_mini alone, so it learns nothing in {', '.join(other_envs)};"
        " teach it by a script first (sft.data=solve, docs/sft.md), or choose a pretrained model"
    ]


def arithmetic(plan: Plan) -> list[str]:
    """The batch shape as text; the second line is the size of the run."""
    from xp.planning.batch import arithmetic as batch_arithmetic
    from xp.planning.run_size import ineffective_lines
    from xp.planning.size_lines import evaluation_line, training_line

    training = plan.spec.training
    if not plan.trains:
        update = f"an update of the fine-tuning: {counted(plan.spec.sft.batch_size, 'episode')}"
        return [update, evaluation_line(plan.spec)]
    episodes = training.episodes_per_step
    updates = training.all_updates_per_step
    return [
        f"a step: {counted(training.prompts_per_step, 'task')} x {counted(training.group_size, 'episode')}"
        f" = {counted(episodes, 'episode')},"
        f" {counted(updates, 'optimizer update')} of {episodes // training.updates_per_step}",
        training_line(plan.spec),
        *ineffective_lines(plan.spec),
        *batch_arithmetic(plan.spec),
        evaluation_line(plan.spec),
    ]


def show_summary(plan: Plan, outputs: Path) -> None:
    """Prints the summary at the end of a run: the training, reward before and after, and paths of its files."""
    from xp.cli.report import episodes_line, report_line, write_report
    from xp.planning.size_lines import held_out_lines

    out = console()
    run = outputs / "runs" / plan.run_id
    is_evaluated = any(stage.name == "evaluate" for stage in plan.stages)
    results = held_out(run) if is_evaluated else {}
    was_tuned = any(stage.name == "sft" for stage in plan.stages)
    size = _made(run, "train" if plan.trains else "sft")
    record = read_record(run)
    out.print(headed(f"\n{'Trained' if plan.trains else 'Fine-tuned'}", f" {title(plan)}{size}"))
    lines = notice_lines(plan)
    lines += [
        f"held-out reward {name:6} {_reward(results[name])}"
        for name in ("before", "after")
        if name in results
    ]
    if not is_evaluated:
        lines.append("not evaluated: nothing is held out (env.held_out=null)")
    if was_tuned and not plan.trains and "after" in results:
        lines.append(f"RL can learn   {_learnable(run)}")
    lines += [
        *held_out_lines(plan.spec, outputs),
        f"took          {time_text(record, plan.spec.hardware)}",
    ]
    lines += [*(symptom_lines(run) if plan.trains else ()), *environment_lines(run)]
    if was_tuned and (run / "sft").exists():
        lines.append(f"fine-tuned    {run / 'sft'}")
    if (run / "model").exists():
        lines.append(f"model         {run / 'model'}")
    write_report(run, lines.append)
    lines += [
        *filter(None, (report_line(run), episodes_line(run))),
        *tracked_places(plan.spec.tracking, run),
    ]
    lines.append(
        f"everything    {run}  (run.json, spec.yaml, metrics.jsonl, attempt_{len(record.attempts)}/*/log.txt)"
    )
    for line in lines:
        out.print(f"  {line}")


def _made(run: Path, stage: str) -> str:
    """Size of a training or fine-tuning, as its trainer counted it."""
    lines = [line for line in read_metrics(run / "metrics.jsonl", stage) if line["step"]]
    text = f": {counted(len(lines), 'step')}"
    num_idle = [line.get("training/updates") for line in lines].count(0)
    if num_idle:
        text += f" ({num_idle} without an update)"
    sums = []
    for name, word in MADE.items():
        values = [line[name] for line in lines if line.get(name) is not None]
        if values:
            sums.append(counted(int(sum(values)), word))
    text += f" = {', '.join(sums)}"
    rates = [line[RATE] for line in lines if line.get(RATE) is not None]
    if rates:
        low = f"{min(rates):.3g}"
        high = f"{max(rates):.3g}"
        if low == high:
            text += f" at learning rate {low}"
        else:
            text += f" at learning rates of {low} to {high}"
    return text


def _learnable(run: Path) -> str:
    """Share of the held-out tasks that the fine-tuned model wins sometimes: the others give a group no advantage."""
    from xp.results.evaluation.results import of_run

    record = of_run(run, run.name, "after").record
    if max(map(len, record.rewards.values()), default=0) < 2:
        return "from tasks that are won sometimes; evaluation.samples_per_task=4 counts them"
    threshold = record.summary.pass_threshold
    rates = [pass_share(rewards, threshold) for rewards in record.rewards.values()]
    never = rates.count(0.0)
    always = rates.count(1.0)
    num_tasks = len(rates) - rates.count(None)
    return (
        f"from {num_tasks - never - always} of {counted(num_tasks, 'task')}, which are won sometimes; {never} are"
        f" never won, {always} always"
    )


def symptom_lines(run: Path) -> list[str]:
    """Symptoms in the metrics and the tool calls of a training; rewards that never varied come first."""
    from xp.results.evaluation.verdict import RunVerdict, diagnose
    from xp.worker.diagnosis.symptom import Severity

    diagnosis = diagnose(run, read_record(run))
    lines = []
    if diagnosis.verdict is RunVerdict.WORSE:
        lines.append(
            f"symptom       worse: {diagnosis.reason}. The model is worse than before the training: lower"
            " training.learning_rate, or set evaluation.keep_best=true and evaluation.every"
        )
    for symptom in diagnosis.symptoms:
        if symptom.severity is not Severity.NOTE:
            lines.append(f"symptom       {symptom.rule}: {symptom.found}. {symptom.change}")
    if lines:
        command = xp_command(f"runs diagnose {run.name}", run.parent.parent)
        lines.append(f"              {command}")
    return lines


def environment_lines(run: Path) -> list[str]:
    """Health of a run's environments, with a label."""
    return labelled_environment(EpisodeCount.of(run).health.lines(run))


def _reward(result: HeldOutResult) -> str:
    """Mean reward, with its confidence interval over tasks unless there is one task or all rewards are equal."""
    low, high = interval_of(result)
    text = f"{result.reward_mean:.3f}"
    if low is not None and high is not None:
        text += f" (95 %: {low:.3f} to {high:.3f})"
    passed = f"a reward of at least {result.pass_threshold:g}"
    if result.pass_threshold == FULL_REWARD:
        passed = "full reward"
    text += f" over {counted(result.num_scored, 'episode')}, {result.pass_share:.0%} with {passed}"
    if result.num_void:
        text += f", {result.num_void} void"
    if result.label:
        return f"{text} ({result.label})"
    return text
