"""Flags and arguments of each command, as argparse subparsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from xp.cli.epilogs import EPILOG, EVAL, PARITY, PROFILE, folded, groups
from xp.cli.episode import add_episode
from xp.cli.report import add_report, add_view
from xp.errors import ExitCode, XpError

Add = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class Command:
    """One command."""

    help: str
    """One line, for the list of commands."""
    add: Add
    """Adds its arguments."""
    takes_overrides: bool = True
    """True if its arguments are `group=option` and `key=value`; an unknown flag may then be a key of another tool."""


class Parser(argparse.ArgumentParser):
    """Raises XpError instead of ending the process; a command that takes overrides lists the groups in its help."""

    def format_help(self) -> str:
        if self.description:
            self.description = folded(self.description)
        if any(action.dest == "overrides" and action.nargs == "*" for action in self._actions) and not self.epilog:
            self.epilog = groups()  # read from the files only when somebody asks
        elif self.epilog == EPILOG:
            self.epilog = f"{EPILOG}\n{groups()}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise XpError(f"{message}\n{self.format_usage().strip()}", ExitCode.CONFIG)


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise XpError(f"--config-dir {text}: no such directory")
    return path


def _count(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _amount(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="group=option|key=value", help="differences from the defaults")
    _config_dir(parser)


def _config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        type=_directory,
        metavar="DIR",
        help="directory of your own options",
    )


def _sweep(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="comma-separated values make a sweep")


def _run(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    parser.add_argument("--again", action="store_true", help="with -m: also run points that are finished")
    parser.add_argument("--lines", action="store_true", help="on a terminal: every line of the stages, no panel")
    _configuration(parser)


def _configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument("--package", metavar="SECTION", help="with --cfg: this section only, e.g. training")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: accepted; values are always resolved")


def _plan(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--files", action="store_true", help="print the files of every stage")
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON")


def _eval(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.epilog = EVAL
    parser.add_argument(
        "--budget-usd", type=_amount, metavar="X", help="begin no episode after this cost (needs model.price_in, _out)"
    )
    parser.add_argument("--max-tokens-total", type=_count, metavar="N", help="begin no episode after this many tokens")
    parser.add_argument("--again", action="store_true", help="play finished evaluations again")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="all figures as JSON")
    form.add_argument("--markdown", action="store_true", help="the table as Markdown")
    form.add_argument("--latex", action="store_true", help="the table as LaTeX")


def _search(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.add_argument("--trials", type=_count, default=20, metavar="N", help="number of runs (20)")
    parser.add_argument("--again", action="store_true", help="also run points that are finished")


def _install(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.add_argument("--python", metavar="PATH", help="the interpreter to build on")
    parser.add_argument("--for-run", action="store_true", help="install nothing if the run would be refused")


def _parity(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.description = f"{parser.description} Words without `=` select keys by prefix: parity training.lr"
    parser.epilog = PARITY
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument(
        "--python", action="append", default=[], metavar="BACKEND=PATH", help="measure: a trainer's interpreter"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="measure: write the differences here, as JSON")


def _explain(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.description = f"{parser.description} Words without `=` are keys: explain training.kl_coef"


def _env(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    check = commands.add_parser("check", help="open, call and play an environment without a model")
    check.add_argument(
        "words",
        nargs="+",
        metavar="TARGET|key=value",
        help="env=NAME, URL, Org/Name or package.module:Class; tasks=4, tokenizer=DIR and overrides",
    )
    check.add_argument("--seconds", type=_count, default=120, metavar="N", help="time limit of the check (120)")
    check.add_argument("--json", action="store_true", help="the report as JSON")
    new = commands.add_parser("new", help="write a working environment with its test, as a beginning of your own")
    new.add_argument("name", metavar="NAME", help="name of the module: small letters, digits and _")
    new.add_argument("--kind", choices=["ors", "graded", "openenv", "verifiers"], default="graded", help="(graded)")
    listing = commands.add_parser("list", help="every installed environment, with its requirements")
    listing.add_argument("--open", action="store_true", help="show splits and tools of those without requirements")
    _config_dir(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")


def _tasks(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)
    listing = commands.add_parser("list", help="every task set in the store")
    listing.add_argument("--json", action="store_true", help="as JSON")
    show = commands.add_parser("show", help="tasks as the model will see them")
    show.add_argument("key", help="key of the set, or its beginning")
    show.add_argument("-n", "--num-tasks", type=_count, default=1, metavar="N", help="number of tasks (1)")
    show.add_argument("--purpose", choices=["train", "held_out"])
    show.add_argument("--task", help="this task only: member/split/index")
    text = "pass rate of each training task over several tries of a model"
    profile = commands.add_parser("profile", help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    _spec(profile)
    profile.epilog = PROFILE
    profile.add_argument("--tries", type=_count, default=8, metavar="N", help="episodes of each task (8)")
    profile.add_argument("--json", action="store_true", help="the rates as JSON")
    verify = commands.add_parser("verify", help="check every hash; exit code 6 if one is wrong")
    verify.add_argument("keys", nargs="*", help="keys or their beginnings; without one: all sets")
    prune = commands.add_parser("prune", help="remove sets, leftovers and damaged sets")
    prune.add_argument("--keep", nargs="*", default=[], metavar="KEY", help="sets to keep")
    prune.add_argument("--yes", action="store_true", help="remove them; without this, only list them")
    for one in commands.choices.values():
        if one is not profile:
            _outputs(one)


def _runs(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    parser.set_defaults(json=False)
    listing = commands.add_parser("list", help="every run, oldest first (the default)")
    listing.add_argument("--json", action="store_true", help="as JSON")
    _outputs(listing)
    for name, text in (
        ("show", "one run: its stages with exit codes and times"),
        ("diagnose", "verdict on a run, with its exit code and symptoms"),
        ("logs", "log of the last stage, followed while the run continues"),
        ("fetch", "copy the model and the trajectories of a run from its launcher's storage"),
        ("recipe", "print a run's differences from the defaults as a recipe"),
        ("cancel", "stop a run"),
        ("trust", "mark a run from elsewhere as your own"),
        ("resume", "continue from the last checkpoint"),
    ):
        one = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        one.add_argument("run", metavar="RUN", help="name of the run, or its directory")
        if name in ("show", "diagnose"):
            what = "its record" if name == "show" else "verdict and symptoms"
            one.add_argument("--json", action="store_true", help=f"{what} as JSON")
        if name == "fetch":
            one.add_argument("--checkpoints", action="store_true", help="the checkpoints too, which may be large")
        if name == "recipe":
            _config_dir(one)
        if name == "resume":
            one.add_argument("overrides", nargs="*", metavar="key=value", help="changes, e.g. training.num_steps=60")
        _outputs(one)
    episode = commands.add_parser("episode", help="the text of one episode")
    add_episode(episode)
    _outputs(episode)
    watch = commands.add_parser("watch", help="a table of runs, updated until they end")
    watch.add_argument("names", nargs="*", metavar="RUN", help="names, beginnings, patterns; without one: running ones")
    _outputs(watch)
    compare = commands.add_parser("compare", help="runs by held-out reward, best first")
    compare.add_argument(
        "names", nargs="*", metavar="RUN", help="names, beginnings of names, or patterns; without one: all"
    )
    form = compare.add_mutually_exclusive_group()
    for name in ("csv", "markdown", "json"):
        form.add_argument(
            f"--{name}", action="store_true", help=f"as {name.upper() if name != 'markdown' else 'Markdown'}"
        )
    compare.add_argument(
        "--paired", action="store_true", help="the first RUN or evaluation against the others, task by task, with tests"
    )
    compare.add_argument("--margin", type=_amount, metavar="X", help="with --paired: a difference that does not matter")
    _outputs(compare)


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "outputs=DIR: another directory than ./outputs"


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.epilog = 'for example: eval "$(xp completion bash)"'


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("prepare tasks, train, evaluate (the default command)", _run),
    "plan": Command("show everything that would run; run nothing", _plan),
    "prepare": Command("run task preparation alone", _sweep),
    "evaluate": Command("play the held-out tasks with a run's model: run=RUN [checkpoint=STEP]", _sweep),
    "eval": Command("play any model on any environment, with statistics", _eval),
    "search": Command("search values with Optuna: training.learning_rate='interval(1e-4,1e-3)'", _search),
    "install": Command("make the Python that the trainer needs, from its lock", _install),
    "parity": Command("show what each backend receives of every key", _parity),
    "explain": Command("explain a key (value, origin, meaning, each backend's rendering) or a metric", _explain),
    "doctor": Command("check this machine against a plan", _spec),
    "env": Command(
        "environments: check one without a model, begin one of your own, list all",
        _env,
        takes_overrides=False,
    ),
    "tasks": Command("the task store: list, show, profile, verify, prune", _tasks, takes_overrides=False),
    "runs": Command(
        "runs: list, show, watch, diagnose, logs, recipe, fetch, cancel, resume, trust, episode, compare",
        _runs,
        takes_overrides=False,
    ),
    "report": Command(
        "write one offline page of runs: curves, episodes, comparison", add_report, takes_overrides=False
    ),
    "view": Command("serve that page on 127.0.0.1, with every episode, during a run", add_view, takes_overrides=False),
    "completion": Command("print a script that completes words after `xp`", _completion, takes_overrides=False),
}
"""Commands, in the order of `--help`."""
