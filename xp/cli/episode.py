"""`python -m xp runs episode`: the text of one episode on the terminal, found by step, task, sample or rank."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from xp.cli.table import print_json
from xp.errors import ExitCode, XpError
from xp.lib.text import counted, first_of

if TYPE_CHECKING:
    from xp.results.report.episodes import EpisodeIndex

TRAIN = "train"
COLOURS = {"assistant": "cyan", "tool": "green", "system": "magenta", "user": "yellow"}


def show_episode(args: Namespace) -> int:
    """Prints the first episode that matches the arguments."""
    from xp.cli.display import console
    from xp.execution.named import EVALUATIONS, RUNS, named_runs
    from xp.results.report.episodes import EpisodeIndex

    directories = named_runs(args.outputs, [args.run], rooms=(RUNS, EVALUATIONS))
    index = EpisodeIndex(directories[0])
    index.refresh()
    number, others = _chosen(index, args)
    record = index.record(number)
    if args.json:
        print_json(record)
        return ExitCode.OK
    entry = index.entries[number]
    out = console()
    reward = "void" if entry.reward is None else f"{entry.reward:g}"
    out.print(f"{entry.task}  {entry.phase} step {entry.step} sample {entry.sample}", style="bold")
    out.print(
        f"reward {reward}, {entry.status}, {counted(entry.turns, 'turn')}, {counted(entry.calls, 'tool call')},"
        f" {entry.malformed} malformed, {entry.seconds:.1f} s",
    )
    for style, line in _lines(record):
        out.print(line, style=style)
    if others:
        out.print(
            f"\n{others} more match; --step, --index, --sample, --best, --median, --worst, --void choose",
            style="dim",
        )
    out.print(f"file: {index.file_of(number)}", style="dim")
    return ExitCode.OK


def _chosen(index: EpisodeIndex, args: Namespace) -> tuple[int, int]:
    """Number of the chosen episode, and number of further matches."""
    from xp.results.report.selection import ranked

    entries = index.entries
    if not entries:
        raise XpError(
            f"{args.run} has no trajectories: no episode of it has ended", ExitCode.RUN_DIR
        )
    phases = sorted({entry.phase for entry in entries})
    phase = args.phase or (TRAIN if TRAIN in phases else phases[-1])
    if phase not in phases:
        raise XpError(f"--phase {phase}: the run has {', '.join(phases)}")
    steps = sorted({entry.step for entry in entries if entry.phase == phase})
    step = steps[-1] if args.step is None else args.step
    if step not in steps:
        raise XpError(f"--step {step}: {phase} has the steps {steps[0]} to {steps[-1]}")
    attempt = index.last_attempt_of()[phase, step]
    numbers = [
        number
        for number, entry in enumerate(entries)
        if (entry.attempt, entry.phase, entry.step) == (attempt, phase, step)
        and (args.index is None or entry.task_index == args.index)
        and (args.sample is None or entry.sample == args.sample)
        and (args.rank != "void" or entry.reward is None)
    ]
    if args.rank in ("best", "median", "worst"):
        order = ranked(entries, numbers)
        numbers = order and [order[{"worst": 0, "median": len(order) // 2, "best": -1}[args.rank]]]
    if not numbers:
        there = {
            entry.task_index for entry in entries if (entry.phase, entry.step) == (phase, step)
        }
        indices = first_of([str(index) for index in sorted(there)], 12)
        raise XpError(f"no episode of {phase} step {step} matches; task indices there: {indices}")
    return numbers[0], len(numbers) - 1


def _lines(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Style and text of each part, in order; a call follows the message that contains it."""
    from xp.results.report.episode_detail import detail

    shown_record = detail(record)
    for message in shown_record["messages"]:
        yield "dim", f"\n── {message['role']} " + "─" * 20
        yield COLOURS.get(message["role"], ""), message["content"]
        for call in shown_record["calls"]:
            if call["turn"] == message.get("turn", -1):
                yield "dim", _call_line(call)
    rewards = ", ".join(
        "none" if reward is None else f"{reward:g}" for reward in shown_record["step_rewards"]
    )
    yield "dim", f"\nrewards of the environment, call by call: {rewards or 'none'}"
    if shown_record["reward_steps"]:
        steps = ", ".join(f"{step} {reward:g}" for step, reward in shown_record["reward_steps"])
        yield "dim", f"reward after each step: {steps}"
    if shown_record["void_reason"]:
        yield "red", f"void: {shown_record['void_reason']}"


def _call_line(call: Mapping[str, Any]) -> str:
    if "malformed" in call:
        return f"  malformed call: {call['malformed']}"
    result = call.get("result")
    if result is None:
        return f"  call {call.get('name', 'answer')}: not executed"
    facts = ["no reward" if result["reward"] is None else f"reward {result['reward']:g}"]
    if result.get("is_call_error"):
        facts.append("call error")
    if result.get("finished"):
        facts.append("episode over")
    return f"  call {call.get('name', 'answer')}: {', '.join(facts)}"
