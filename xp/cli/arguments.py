"""Flags and arguments of each command, as argparse subparsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from xp.cli.actions import add_env, add_runs, add_tasks
from xp.cli.argument_types import add_spec, amount, count
from xp.cli.epilogs import EVAL
from xp.cli.report import add_report, add_view

Add = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class Command:
    """One command."""

    help: str
    """One line of help, for the list of commands."""
    add: Add
    """Adds its arguments."""
    takes_overrides: bool = True
    """True if its arguments are `group=option` and `key=value`; an unknown flag may then be another tool's key."""


def _sweep(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="comma-separated values make a sweep")


def _run(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    parser.add_argument("--again", action="store_true", help="with -m: also run points that are finished")
    parser.add_argument("--lines", action="store_true", help="plain lines instead of the panel on a terminal")
    _configuration(parser)


def _configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument("-p", "--package", metavar="SECTION", help="with --cfg: print only this section, e.g. training")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: no effect; values are always resolved")


def _plan(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--files", action="store_true", help="print the files of every stage")
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON")


def _eval(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.epilog = EVAL
    parser.add_argument(
        "--budget-usd",
        type=amount,
        metavar="X",
        help="cost limit; no episode begins after it (needs model.price_in, _out)",
    )
    parser.add_argument("--max-tokens-total", type=count, metavar="N", help="token limit; no episode begins after it")
    parser.add_argument("--again", action="store_true", help="play finished evaluations again")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all figures as JSON")
    form.add_argument("--markdown", action="store_true", help="the table as Markdown")
    form.add_argument("--latex", action="store_true", help="the table as LaTeX")


def _search(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--trials", type=count, default=20, metavar="N", help="number of runs (20)")
    parser.add_argument("--again", action="store_true", help="also run points that are finished")


def _install(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--python", metavar="PATH", help="interpreter of the new environment")
    parser.add_argument("--for-run", action="store_true", help="install nothing if the run would be refused")


def _parity(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.description = f"{parser.description} Words without `=` select keys by prefix: parity training.lr"
    parser.add_argument("--json", action="store_true", help="the table as JSON")


def _explain(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.description = f"{parser.description} Words without `=` are keys: explain training.kl_coef"


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.epilog = 'for example: eval "$(xp completion bash)"'


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("prepare tasks, train, evaluate (the default command)", _run),
    "plan": Command("show everything that would run; run nothing", _plan),
    "prepare": Command("prepare the tasks only", _sweep),
    "evaluate": Command("play the held-out tasks with a run's model (run=RUN [checkpoint=STEP]) or the spec's", _sweep),
    "eval": Command("play any model on any environment, with statistics", _eval),
    "search": Command("search values with Optuna: training.learning_rate='interval(1e-4,1e-3)'", _search),
    "install": Command("make the Python that the trainer needs, from its lock", _install),
    "parity": Command("show what each backend receives of every key", _parity),
    "explain": Command("explain a key (value, origin, meaning, each backend's rendering) or a metric", _explain),
    "doctor": Command("check this machine against a plan", add_spec),
    "env": Command(
        "environments: check one without a model, create one, list all",
        add_env,
        takes_overrides=False,
    ),
    "tasks": Command("the task store: list, show, profile, verify, prune", add_tasks, takes_overrides=False),
    "runs": Command(
        "runs: list, show, watch, diagnose, logs, recipe, fetch, cancel, resume, trust, episode, compare",
        add_runs,
        takes_overrides=False,
    ),
    "report": Command(
        "write one offline page of runs: curves, episodes, comparison", add_report, takes_overrides=False
    ),
    "view": Command("serve the report of runs on 127.0.0.1, also during a run", add_view, takes_overrides=False),
    "completion": Command("print a script for completion of `xp` in a shell", _completion, takes_overrides=False),
}
"""Commands, in the order of `--help`."""
