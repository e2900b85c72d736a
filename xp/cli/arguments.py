"""Commands with their flags, arguments and texts of help, as argparse subparsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Final, NoReturn

from xp.cli.episode import add_episode
from xp.cli.help_texts import EPILOG, EVAL, LISTS, PROFILE
from xp.cli.report import NAMES_OF_RUNS, add_report, add_view
from xp.errors import XpError

Add = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class Command:
    """One command."""

    help: str
    """One line of help, for the list of commands."""
    add: Add
    """Adds its arguments."""
    handler: str
    """Function that takes the arguments and returns the exit code: `module:name` below xp.cli, imported at need."""


def _sweep(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="comma-separated values make a sweep")


def _run(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    parser.add_argument("--again", action="store_true", help="with -m: also run points that are finished")
    parser.add_argument("--lines", action="store_true", help="plain lines instead of the panel on a terminal")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument("-p", "--package", metavar="SECTION", help="with --cfg: print only this section, e.g. training")
    parser.add_argument("--resolve", action="store_true", help="with --cfg: no effect; values are always resolved")


def _plan(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    parser.add_argument("--sft", action="store_true", help="plan the fine-tuning alone, as `xp sft` runs it")
    parser.add_argument("--files", action="store_true", help="print the files of every stage")
    parser.add_argument("--json", action="store_true", help="the whole plan as JSON")
    parser.add_argument("--native", action="store_true", help="print the native keys that the trainer receives")
    parser.add_argument(
        "--native-diff",
        type=Path,
        metavar="FILE",
        help="where the keys of a training script, a YAML file or a list of arguments went",
    )
    parser.add_argument(
        "--compare",
        action="append",
        metavar="KEY=A,B",
        help="a line for each value: memory, time and price; several are combined",
    )


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


def _rescore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="RUN|key=value", help="one run or two, and the rule")
    parser.add_argument("--json", action="store_true", help="all steps and the comparison as JSON")
    parser.description = (
        f"{parser.description} Nothing is played. A rule is env.reward_fn=my_rewards:score or env.reward.reduction=max."
        " One run is compared with its untrained model, two runs with each other."
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN|BUNDLE", help="name of a run, its directory, or a bundle (.zip)")
    parser.add_argument(
        "--levels", default="abcde", metavar="LETTERS", help="only these levels; d and e train again (abcde)"
    )
    parser.add_argument(
        "--episodes", type=count, default=64, metavar="N", help="largest number of episodes that are played again (64)"
    )
    parser.description = (
        f"{parser.description} Levels: a, the jobs; b, the task set; c, the environment's answers; d, all numbers of a"
        " training on the CPU; e, the held-out reward, by a test of equivalence."
    )
    _outputs(parser)


def _explain(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.description = f"{parser.description} Words without `=` are keys: explain training.kl_coef"


SLOTS: Final = (
    "sessions to open at the same time, on a remote server too (default: up to 64, on a server that xp starts)"
)


def _doctor(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.add_argument("--json", action="store_true", help="every finding as JSON")
    parser.add_argument("--slots", type=count, metavar="N", help=SLOTS)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", metavar="GROUP", help="list what each option of this group is")
    parser.add_argument(
        "--open", action="store_true", help="with env: also splits and tools of environments without requirements"
    )
    add_config_dir(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.epilog = 'for example: eval "$(xp completion bash)"'


class Parser(argparse.ArgumentParser):
    """Raises XpError instead of ending the process; help names the list of the groups, that of xp itself has it."""

    @property
    def takes_overrides(self) -> bool:
        """True if its arguments are `group=option` and `key=value`; an unknown flag may then be another tool's key."""
        return any(action.dest == "overrides" for action in self._actions)

    @property
    def flags(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def format_help(self) -> str:
        if self.description:
            self.description = folded(self.description)
        if self.takes_overrides and not self.epilog:
            self.epilog = LISTS
        elif self.epilog == EPILOG:
            self.epilog = f"{EPILOG}\n{groups()}\n\n{LISTS}"  # reads the files, so only for --help
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise XpError(f"{message}\n{self.format_usage().strip()}")


def directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise XpError(f"--config-dir {text}: no such directory")
    return path


def count(text: str) -> int:
    """Argument type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def amount(text: str) -> float:
    """Argument type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="group=option|key=value", help="differences from the defaults")
    add_config_dir(parser)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        type=directory,
        metavar="DIR",
        help="directory of your own options",
    )


def groups() -> str:
    """The groups with their options."""
    from xp.composition import GROUPS, options

    more = {"hardware": ", auto (this machine), GPUs x card (8xB200, 2x8xH100)"}
    lines = "\n".join(folded(f"  {group:10} {', '.join(options(group))}{more.get(group, '')}", 13) for group in GROUPS)
    return f"groups:\n{lines}"


def folded(text: str, indent: int = 0) -> str:
    """Text wrapped for the terminal, continuation lines indented; names are not split."""
    width = max(60, get_terminal_size().columns - 2)
    return fill(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _actions(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=Parser)


def add_parser(subparsers: Any, name: str, text: str) -> Parser:
    """A command or an action; `text` is its line in the list and the description in its own help."""
    one: Parser = subparsers.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.add_argument("--debug", action="store_true", help="show a traceback instead of one message")
    return one


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "outputs=DIR: use DIR instead of ./outputs"


def add_env(parser: argparse.ArgumentParser) -> None:
    """The actions of `env`."""
    actions = _actions(parser)
    check = add_parser(actions, "check", "open, call and play an environment without a model")
    check.add_argument(
        "words",
        nargs="+",
        metavar="TARGET|key=value",
        help="env=NAME, URL, Org/Name or package.module:Class; tasks=4, tokenizer=DIR and overrides",
    )
    check.add_argument(
        "--labels", type=Path, metavar="FILE", help="instead: agreement of env.judge with rows that a person labelled"
    )
    check.add_argument(
        "--budget-usd", type=amount, metavar="X", help="with --labels: cost limit (needs the judge's prices)"
    )
    add_config_dir(check)
    check.epilog = 'a row of --labels: {"prompt": "...", "answers": ["...", "..."], "labels": [1, 0]}'
    check.add_argument("--seconds", type=count, default=120, metavar="N", help="time limit of the check (120)")
    check.add_argument("--slots", type=count, metavar="N", help=SLOTS)
    check.add_argument("--json", action="store_true", help="the report as JSON")
    new = add_parser(actions, "new", "write a working environment and its test, for you to edit")
    new.add_argument("name", metavar="NAME", help="name of the module: small letters, digits and _")
    new.add_argument(
        "--kind",
        choices=["ors", "graded", "openenv", "verifiers", "harness"],
        default="graded",
        help="graded: rows and a grader; ors: tools over the ORS protocol; openenv: reset and step;"
        " verifiers: of that library; harness: an agent program (default: graded)",
    )


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """The actions of `tasks`."""
    actions = _actions(parser)
    listing = add_parser(actions, "list", "every task set in the store")
    listing.add_argument("--json", action="store_true", help="as JSON")
    show = add_parser(actions, "show", "tasks as the model will see them")
    show.add_argument("key", metavar="SET", help="key of the set, or its first characters")
    show.add_argument("-n", "--num-tasks", type=count, default=1, metavar="N", help="number of tasks (1)")
    show.add_argument("--purpose", choices=["train", "held_out"], help="only tasks of this purpose (default: both)")
    show.add_argument("--task", metavar="ID", help="this task only: member/split/index")
    profile = add_parser(actions, "profile", "pass rate of each training task over several tries of a model")
    add_spec(profile)
    profile.add_argument("--tries", type=count, default=8, metavar="N", help="episodes of each task (8)")
    profile.add_argument(
        "--logged",
        action="store_true",
        help="play nothing: mean rewards of rollouts that OpenReward has logged",
    )
    profile.add_argument("--logged-model", metavar="NAME", help="the same, for the rollouts of this model")
    profile.add_argument("--json", action="store_true", help="the rates as JSON")
    verify = add_parser(actions, "verify", "check every hash; exit code 6 if one is wrong")
    verify.add_argument(
        "keys", nargs="*", metavar="SET", help="keys of sets, or their first characters (default: all sets)"
    )
    verify.add_argument("--json", action="store_true", help="the results as JSON")
    prune = add_parser(actions, "prune", "remove sets, leftovers and damaged sets")
    prune.add_argument("--keep", nargs="*", default=[], metavar="SET", help="sets to keep")
    prune.add_argument("--yes", action="store_true", help="remove them; without this, only list them")
    prune.add_argument("--json", action="store_true", help="the list as JSON")
    for one in (listing, show, verify, prune):
        _outputs(one)
    profile.epilog = PROFILE


def _add_compare(compare: argparse.ArgumentParser) -> None:
    compare.add_argument("names", nargs="*", metavar="RUN", help="names, prefixes or patterns (default: all runs)")
    form = compare.add_mutually_exclusive_group()
    for name in ("CSV", "Markdown", "JSON"):
        form.add_argument(f"--{name.lower()}", action="store_true", help=f"as {name}")
    compare.add_argument(
        "--paired", action="store_true", help="the first RUN or evaluation against the others, task by task, with tests"
    )
    compare.add_argument(
        "--margin", type=amount, metavar="X", help="with --paired: margin of equivalence, in units of reward"
    )


def add_runs(parser: argparse.ArgumentParser) -> None:
    """The actions of `runs`; without one, the runs are listed."""
    actions = _actions(parser)

    def of_run(name: str, text: str) -> argparse.ArgumentParser:
        action = add_parser(actions, name, text)
        action.add_argument("run", metavar="RUN", help="name of the run, or its directory OUTPUTS/runs/RUN")
        return action

    listing = add_parser(actions, "list", "every run, oldest first (the default)")
    listing.add_argument(
        "words", nargs="*", metavar="key=value|TEXT", help="only runs with these values, tags (tag=WORD) and texts"
    )
    listing.add_argument("--json", action="store_true", help="as JSON")
    tag = add_parser(actions, "tag", "add tags to runs or evaluations, or remove them; set the note; print both")
    tag.add_argument("run", metavar="RUN", help=NAMES_OF_RUNS)
    tag.add_argument("words", nargs="*", metavar="TAG", help="words such as good-baseline; none: print the tags")
    tag.add_argument("--remove", action="store_true", help="remove these tags instead")
    tag.add_argument("--note", metavar="TEXT", help="sentence about the run; '' removes it")
    show = of_run("show", "one run: its stages with exit codes and times")
    show.add_argument(
        "--lock",
        action="store_true",
        help="instead: what its result depends on (digests of spec, code, model and tasks, versions, seeds)",
    )
    show.add_argument("--json", action="store_true", help="as JSON")
    diagnose = of_run("diagnose", "verdict on a run, with its exit code and symptoms")
    diagnose.add_argument("--json", action="store_true", help="as JSON")
    logs = of_run("logs", "log of the last stage")
    logs.add_argument("-f", "--follow", action="store_true", help="continue until the run ends")
    fetch = of_run("fetch", "copy the model and the trajectories of a run from its launcher's storage")
    fetch.add_argument("--checkpoints", action="store_true", help="the checkpoints too, which may be large")
    of_run("recipe", "print the command line that began a run, to run it again")
    bundle = of_run("bundle", "make one file of a run, with which somebody else does it again")
    bundle.add_argument("--to", type=Path, metavar="FILE", help="the file (RUN.zip)")
    bundle.add_argument("--no-tasks", action="store_true", help="without the task set, if its licence forbids it")
    bundle.add_argument("--no-episodes", action="store_true", help="without the recorded episodes")
    publish = of_run("publish", "publish a run's model, with a card, and its episodes: into a directory, or on the hub")
    publish.add_argument("--to", required=True, metavar="PLACE", help="a new directory, or hub:ORG/NAME")
    publish.add_argument("--no-episodes", action="store_true", help="only the model")
    publish.add_argument("--dry-run", action="store_true", help="print the files and the model card; publish nothing")
    publish.description = (
        f"{publish.description} On the hub: a model NAME and a data set NAME-episodes, private if they are new."
    )
    of_run("cancel", "stop a run")
    trust = of_run("trust", "mark a run of another user or place, or a bundle, as your own")
    trust.add_argument(
        "--accept", nargs="+", metavar="FACT", help="instead: let a resume continue with this code as it is now"
    )
    add_episode(add_parser(actions, "episode", "the text of one episode"))
    _add_compare(add_parser(actions, "compare", "runs by held-out reward, best first"))
    for one in actions.choices.values():
        _outputs(one)


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("prepare tasks, train, evaluate (the default command)", _run, "commands:run"),
    "plan": Command("show everything that would run; run nothing", _plan, "commands:plan"),
    "prepare": Command("prepare the tasks only", _sweep, "commands:prepare"),
    "sft": Command("fine-tune on episodes, without a training (sft.data=...)", _sweep, "commands:sft"),
    "eval": Command("play any model on any environment, with statistics", _eval, "evaluation:eval_command"),
    "search": Command(
        "search values with Optuna: training.learning_rate='interval(1e-4,1e-3)'", _search, "commands:search"
    ),
    "install": Command("make the Python that the trainer needs, from its lock", _install, "install:install_command"),
    "options": Command(
        "list the groups and their options, or the options of one group with what they are",
        _options,
        "options:options_command",
    ),
    "explain": Command(
        "explain a key (value, origin, meaning, each backend's rendering) or a metric",
        _explain,
        "explain:explain_command",
    ),
    "doctor": Command("check this machine against a plan", _doctor, "commands:doctor"),
    "env": Command(
        "environments: check one without a model, or its judge; create one", add_env, "environments:env_command"
    ),
    "tasks": Command("the task store: list, show, profile, verify, prune", add_tasks, "tasks:tasks_command"),
    "runs": Command(
        "runs: list, show, diagnose, logs, tag, recipe, bundle, publish, fetch, cancel, trust, episode, compare",
        add_runs,
        "runs:runs_command",
    ),
    "replay": Command("do a recorded run again, and name what is not the same", _replay, "reproduce:replay_command"),
    "rescore": Command(
        "settle the recorded episodes of a run by another rule of rewards", _rescore, "rescore:rescore_command"
    ),
    "report": Command(
        "write one offline page of runs: curves, episodes, comparison", add_report, "report:report_command"
    ),
    "view": Command(
        "serve a page of all runs, or the report of some, on 127.0.0.1, also during a run",
        add_view,
        "report:view_command",
    ),
    "completion": Command(
        "print a script for completion of `xp` in a shell", _completion, "completion:completion_command"
    ),
}
"""Commands, in the order of `--help`."""
INSTEAD: Final = {
    "parity": "explain KEY",
    "evaluate": "eval run=RUN@STEP",
    "model": "options model",
    "hardware": "options hardware",
    "env list": "options env",
    "judge": "env check --labels FILE env=NAME 'env.judge={...}'",
    "publish": "runs publish RUN --to PLACE",
    "runs watch": "runs logs RUN --follow",
    "runs lock": "runs show RUN --lock",
    "runs resume": "resume=RUN",
} | dict.fromkeys(("rerun", "repeat", "again", "runs rerun", "runs repeat", "runs again"), "runs recipe RUN")
"""Words that are no commands -> the command for them."""
