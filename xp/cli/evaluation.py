"""`python -m xp eval`: evaluates each model on each environment, or resumes, and prints one table."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from xp.cli.display import console
from xp.cli.progress import bar
from xp.cli.table import print_json, wrapped
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.named import outputs_of
from xp.execution.run_directory import xp_command
from xp.lib.signals import stopping
from xp.lib.terminal import shown
from xp.lib.text import counted
from xp.results.evaluation import records, tables
from xp.results.evaluation.command_line import read
from xp.results.evaluation.driver import Allowance
from xp.results.evaluation.entries import entries
from xp.results.evaluation.evaluate import EvaluationRun
from xp.results.evaluation.logged import logged_rates
from xp.results.evaluation.paired import PairedComparison, p_text
from xp.results.evaluation.results import compare_all
from xp.results.evaluation.settings import default_margin
from xp.spec import RunSpec
from xp.tasks.profile import pass_share
from xp.tasks.report import UNLIMITED

BINS: Final = 4
"""Number of ranges of rates between never and always."""


def eval_command(args: Namespace) -> int:
    """Evaluates, or lists evaluations; the exit code is UNHEALTHY if too many episodes are void."""
    if args.overrides[:1] == ["list"]:
        return show_list(args, outputs_of(args.overrides), args.overrides[1:])
    allowance = Allowance(args.budget_usd, args.max_tokens_total)
    runs = evaluations(args.overrides, args.config_dir, allowance, again=args.again)
    outputs = Path(runs[0].entry.spec.outputs)
    results: list[dict[str, Any]] = []
    with stopping():
        try:
            for run in runs:
                with redirect_stdout(sys.stderr):
                    results.append(run.run(again=args.again))
        except (XpError, KeyboardInterrupt):
            if results:
                _show(args, results, outputs)
            _tell_played(runs[len(results) :])
            raise
    _show(args, results, outputs)
    for run, result in zip(runs, results, strict=True):
        _check_void(run.entry.spec, result, "; add --again, which plays them again")
    return ExitCode.OK


def evaluations(
    words: Sequence[str], config_dirs: Sequence[Path], allowance: Allowance, *, again: bool
) -> list[EvaluationRun]:
    """The evaluations of a command line, checked: one for each model on each environment.

    Raises:
        XpError: a word is not understood, or an evaluation cannot be played.
    """
    known = read(words, config_dirs)
    if allowance.budget_usd is not None and known.settings.model.price_in is None:
        raise XpError(
            "--budget-usd needs the prices: model.price_in=USD model.price_out=USD for a million tokens"
        )
    runs = [EvaluationRun(entry, known.settings, allowance) for entry in entries(known)]
    python = known.settings.eval.python
    if python is not None and not any(run.starts_engine for run in runs):
        raise XpError(
            f"eval.python={python} runs servers of vLLM and SGLang, and none is started; leave it out, or set"
            " eval.engine=vllm or sglang for a model of this machine"
        )
    for run in runs:
        run.check(again=again)
    return runs


def _tell_played(runs: Sequence[EvaluationRun]) -> None:
    """Prints how many episodes of unfinished evaluations are on record, if there are any."""
    with suppress(XpError):  # unreadable records are the fault that is being raised
        num_played = sum(run.num_played() for run in runs)
        if num_played:
            on_record = f"{counted(num_played, 'played episode')} {'is' if num_played == 1 else 'are'} on record"
            print(f"xp: {on_record}; the same command continues from there", file=sys.stderr)


def show_paired(args: Namespace) -> int:
    """Prints evaluations compared task by task: difference, interval, tests, and a sentence with the result."""
    if not args.names:
        raise XpError(
            "compare --paired: name a RUN (before against after training), or two runs or evaluations"
        )
    if args.csv or args.markdown:
        raise XpError(
            "compare --paired is shown as text or with --json; leave out --csv and --markdown"
        )
    pairs = compare_all(args.outputs, args.names, args.margin or default_margin())
    if args.json:
        print_json(pairs)
        return ExitCode.OK
    out = console()
    for pair in pairs:
        for line in paired_lines(pair):
            out.print(wrapped(line))
    return ExitCode.OK


def paired_lines(comparison: PairedComparison) -> list[str]:
    """A comparison as lines of text."""
    passes = comparison.passes
    left_out = ""
    interval = ""
    if comparison.num_left_out:
        left_out = f", {comparison.num_left_out} left out as void"
    if comparison.low is not None:
        interval = f", 95 % interval {comparison.low:+.3f} to {comparison.high:+.3f}"
    lines = [
        f"{comparison.second} against {comparison.first}, {counted(comparison.num_tasks, 'task')}{left_out}",
        f"  reward   {comparison.mean_first:.3f} -> {comparison.mean_second:.3f}: {comparison.difference:+.3f}{interval}",
        f"  passes   both {passes.both}, only {comparison.first} {passes.only_first},"
        f" only {comparison.second} {passes.only_second},"
        f" neither {passes.neither} (first episode of each task; McNemar p {p_text(passes.p_value)})",
    ]
    if comparison.smallest:
        lines.append(
            f"  smallest difference that {comparison.num_tasks} tasks show with a probability of 80 %: {comparison.smallest:.3f}"
        )
    return [*lines, f"  {comparison.verdict}"]


def show_list(args: Namespace, outputs: Path, words: Sequence[str]) -> int:
    """Prints every evaluation below the outputs root, oldest first, as JSON or a table of those with a result."""
    unknown = [word for word in words if not word.startswith("outputs=")]
    flags = ("again", "budget_usd", "max_tokens_total", "config_dir")
    unknown += [f"--{flag.replace('_', '-')}" for flag in flags if getattr(args, flag)]
    if unknown:
        raise XpError(
            f"{unknown[0]}: eval list plays nothing: it takes only outputs=DIR, --json, --markdown and --latex"
        )
    out = console()
    listed = records.summaries(outputs)
    if args.json or args.markdown or args.latex:
        summaries = [dict(entry.record.content) for entry in listed if entry.record is not None]
        _show(args, summaries, outputs)
        for entry in listed:
            if entry.fault:
                print(f"xp: {shown(records.line_of(entry))}", file=sys.stderr)
        return ExitCode.OK
    for entry in listed:
        out.print(records.line_of(entry))
    if not listed:
        out.print(f"no evaluations below {outputs / records.ROOM}")
    return ExitCode.OK


def show_table(results: Sequence[dict[str, Any]]) -> None:
    """Prints the table, and notes below it."""
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(tables.HEAD):
        table.add_column(
            column, no_wrap=True, justify="right" if number in (2, 3, 5, 6) else "left"
        )
    for row in tables.rows(results):
        table.add_row(*(shown(cell) for cell in row))
    out.width = UNLIMITED
    out.print(table)
    for result in results:
        for line in tables.notes(result):
            out.print(f"  {line}")


def _show(args: Namespace, results: Sequence[dict[str, Any]], outputs: Path) -> None:
    if args.json:
        print_json(results)
    elif args.markdown:
        print(tables.markdown(results), end="")
    elif args.latex:
        print(tables.latex(results), end="")
    else:
        show_table(results)
        for result in results:
            print(f"  everything  {outputs / records.ROOM / result['id']}")
        if len(results) > 1 and len({result["task_set"] for result in results}) == 1:
            names = " ".join(result["id"] for result in results)
            print(f"  compare     {xp_command(f'runs compare {names} --paired', outputs)}")


def _check_void(spec: RunSpec, result: Mapping[str, Any], fix: str = "") -> None:
    """Raises XpError(UNHEALTHY) for an evaluation with too many void episodes."""
    summary = result["summary"]
    void = summary["num_void"]
    total = summary["num_episodes"]
    most = spec.training.max_void_fraction
    if void > most * total:
        raise XpError(
            f"{result['env']} / {result['model']['name']}: {void} of {total} episodes are void, more than"
            f" training.max_void_fraction={most}: environment or endpoint is failing"
            f" ({summary.get('void_reasons')}){fix}",
            ExitCode.UNHEALTHY,
        )


TRIES: Final = 8
"""Episodes of each task of a profile, unless a command line has `--tries`."""


def profile_command(args: Namespace) -> int:
    """Plays every training task several times, or resumes; prints the distribution of the pass rates.

    Raises:
        XpError: the evaluation failed, or there is more than one model or environment.
    """
    if args.logged or args.logged_model is not None:
        return _logged_command(args)
    fixed = (
        "eval.tasks=train",
        f"evaluation.samples_per_task={args.tries or TRIES}",
        f"outputs='{args.outputs}'",
    )
    repetitions = [
        word
        for word in args.overrides
        if word.startswith(("eval.tasks=", "evaluation.samples_per_task="))
    ]
    if repetitions:
        raise XpError(
            f"{repetitions[0]}: a profile plays the training tasks; add --tries N, the episodes of each task"
        )
    words = read([*args.overrides, *fixed], args.config_dir)
    profiled = entries(words)
    if len(profiled) != 1:
        raise XpError(
            f"a profile is of one model and one environment or mixture; got {len(profiled)} pairs"
        )
    with stopping(), redirect_stdout(sys.stderr):
        result = EvaluationRun(profiled[0], words.settings, Allowance(None, None)).run(again=False)
    tries = result["playing"]["samples_per_task"]
    threshold = result["playing"]["pass_threshold"]
    # None means that every episode of a task was void.
    rates = {
        task: pass_share(record["rewards"], threshold) for task, record in result["tasks"].items()
    }
    if args.json:
        print_json({"id": result["id"], "model": result["model"]["name"], "rates": rates})
    else:
        head = (
            f"{len(rates)} training tasks of {result['env']}, {tries} tries each by {result['model']['name']};"
            f" a reward of at least {threshold:g} passes"
        )
        _show_rates(head, list(rates.values()), result["id"], 1 / tries / 2)
    _check_void(profiled[0].spec, result)
    if result["status"] == "finished":
        return ExitCode.OK
    return ExitCode.UNHEALTHY


def _logged_command(args: Namespace) -> int:
    """Fetches the mean rewards of the training tasks from OpenReward, and writes them as a profile."""
    if args.tries is not None:
        raise XpError("--tries: --logged plays nothing; leave one of the two out")
    spec = compose([*args.overrides, f"outputs='{args.outputs}'"], args.config_dir)
    name, logged = logged_rates(spec, args.logged_model)
    profile = logged.profile()
    if args.json:
        print_json({"id": name, "model": profile.model, "rates": logged.rates})
        return ExitCode.OK
    head = f"{counted(len(profile.rates), 'task')} of {logged.environment}, {logged.split}; {profile.model}"
    _show_rates(head, list(profile.rates.values()), name, 0.1)
    return ExitCode.OK


def _show_rates(head: str, rates: Sequence[float | None], profile: str, lowest: float) -> None:
    """Prints the distribution of the rates, and the keys of a training on tasks with a rate from `lowest` on."""
    known = [rate for rate in rates if rate is not None]
    edges = [number / BINS for number in range(BINS + 1)]
    between = [
        (f"{low:g} to {high:g}", sum(low <= rate < high and rate > 0 for rate in known))
        for low, high in pairwise(edges)
    ]
    print(shown(head))
    for label, number in (("never", known.count(0.0)), *between, ("always", known.count(1.0))):
        print(f"  {label:<22}{number:>6}  {bar(number / max(1, len(known)))}")
    void = len(rates) - len(known)
    if void:
        print(f"  {'every try was void':<22}{void:>6}  left out of a training by pass rate")
    print("train on what is neither always nor never passed:")
    print(f"  env.train.profile={profile} env.train.pass_rate=[{lowest:g},{1 - lowest:g}]")
