"""Actions of the commands `env`, `tasks` and `runs`, with their flags and arguments."""

from __future__ import annotations

import argparse
from typing import Any, Final

from xp.cli.argument_types import Parser, add_config_dir, add_spec, amount, count
from xp.cli.epilogs import PROFILE
from xp.cli.episode import add_episode

Actions = Any
"""The subparsers of a command; argparse's type for them is private."""
SIMPLE: Final = {
    "show": "one run: its stages with exit codes and times",
    "diagnose": "verdict on a run, with its exit code and symptoms",
    "logs": "log of the last stage, followed while the run continues",
    "fetch": "copy the model and the trajectories of a run from its launcher's storage",
    "recipe": "print a run's differences from the defaults as a recipe",
    "cancel": "stop a run",
    "trust": "mark a run of another user or place as your own",
    "resume": "continue from the last checkpoint",
}
"""Action on one run -> its line of help."""


def _actions(parser: argparse.ArgumentParser) -> Actions:
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)


def _action(actions: Actions, name: str, text: str) -> argparse.ArgumentParser:
    """One action; `text` is its line in the list and the description in its own help."""
    one: argparse.ArgumentParser = actions.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show a traceback")
    return one


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "outputs=DIR: use DIR instead of ./outputs"


def add_env(parser: argparse.ArgumentParser) -> None:
    """The actions of `env`."""
    actions = _actions(parser)
    check = _action(actions, "check", "open, call and play an environment without a model")
    check.add_argument(
        "words",
        nargs="+",
        metavar="TARGET|key=value",
        help="env=NAME, URL, Org/Name or package.module:Class; tasks=4, tokenizer=DIR and overrides",
    )
    check.add_argument("--seconds", type=count, default=120, metavar="N", help="time limit of the check (120)")
    check.add_argument("--json", action="store_true", help="the report as JSON")
    new = _action(actions, "new", "write a working environment and its test, for you to edit")
    new.add_argument("name", metavar="NAME", help="name of the module: small letters, digits and _")
    new.add_argument(
        "--kind",
        choices=["ors", "graded", "openenv", "verifiers"],
        default="graded",
        help="graded: rows and a grader; ors: tools over the ORS protocol; openenv: reset and step;"
        " verifiers: of that library (default: graded)",
    )
    listing = _action(actions, "list", "every installed environment, with its requirements")
    listing.add_argument(
        "--open", action="store_true", help="also show splits and tools of environments without requirements"
    )
    add_config_dir(listing)
    listing.add_argument("--json", action="store_true", help="as JSON")


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """The actions of `tasks`."""
    actions = _actions(parser)
    listing = _action(actions, "list", "every task set in the store")
    listing.add_argument("--json", action="store_true", help="as JSON")
    show = _action(actions, "show", "tasks as the model will see them")
    show.add_argument("key", metavar="SET", help="key of the set, or its first characters")
    show.add_argument("-n", "--num-tasks", type=count, default=1, metavar="N", help="number of tasks (1)")
    show.add_argument("--purpose", choices=["train", "held_out"], help="only tasks of this purpose (default: both)")
    show.add_argument("--task", metavar="ID", help="this task only: member/split/index")
    profile = _action(actions, "profile", "pass rate of each training task over several tries of a model")
    add_spec(profile)
    profile.add_argument("--tries", type=count, default=8, metavar="N", help="episodes of each task (8)")
    profile.add_argument("--json", action="store_true", help="the rates as JSON")
    verify = _action(actions, "verify", "check every hash; exit code 6 if one is wrong")
    verify.add_argument(
        "keys", nargs="*", metavar="SET", help="keys of sets, or their first characters (default: all sets)"
    )
    verify.add_argument("--json", action="store_true", help="the results as JSON")
    prune = _action(actions, "prune", "remove sets, leftovers and damaged sets")
    prune.add_argument("--keep", nargs="*", default=[], metavar="SET", help="sets to keep")
    prune.add_argument("--yes", action="store_true", help="remove them; without this, only list them")
    prune.add_argument("--json", action="store_true", help="the list as JSON")
    for one in (listing, show, verify, prune):
        _outputs(one)
    profile.epilog = PROFILE


def add_runs(parser: argparse.ArgumentParser) -> None:
    """The actions of `runs`; without one, the runs are listed."""
    actions = _actions(parser)
    listing = _action(actions, "list", "every run, oldest first (the default)")
    listing.add_argument("--json", action="store_true", help="as JSON")
    for name, text in SIMPLE.items():
        one = _action(actions, name, text)
        one.add_argument("run", metavar="RUN", help="name of the run, or its directory OUTPUTS/runs/RUN")
        if name in ("show", "diagnose"):
            what = "its record" if name == "show" else "verdict and symptoms"
            one.add_argument("--json", action="store_true", help=f"{what} as JSON")
        if name == "fetch":
            one.add_argument("--checkpoints", action="store_true", help="the checkpoints too, which may be large")
        if name == "recipe":
            add_config_dir(one)
        if name == "resume":
            one.add_argument("overrides", nargs="*", metavar="key=value", help="changes, e.g. training.num_steps=60")
    add_episode(_action(actions, "episode", "the text of one episode"))
    watch = _action(actions, "watch", "a table of runs, updated until they end")
    watch.add_argument("names", nargs="*", metavar="RUN", help="names, prefixes or patterns (default: running runs)")
    _add_compare(_action(actions, "compare", "runs by held-out reward, best first"))
    for one in actions.choices.values():
        _outputs(one)


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("names", nargs="*", metavar="RUN", help="names, prefixes or patterns (default: all runs)")
    form = compare.add_mutually_exclusive_group()
    for name in ("csv", "markdown", "json"):
        form.add_argument(
            f"--{name}", action="store_true", help=f"as {name.upper() if name != 'markdown' else 'Markdown'}"
        )
    compare.add_argument(
        "--paired", action="store_true", help="the first RUN or evaluation against the others, task by task, with tests"
    )
    compare.add_argument(
        "--margin", type=amount, metavar="X", help="with --paired: margin of equivalence, in units of reward"
    )
