"""Commands with their flags, arguments and texts of help, as argparse subparsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, Final, NoReturn

from xp.cli.help_texts import EPILOG, EVAL, LISTS, PROFILE
from xp.errors import XpError

Add = Callable[[argparse.ArgumentParser], None]
NAMES_OF_RUNS: Final = (
    "name of a run or an evaluation, a prefix, a pattern such as 'sweep-*', or a directory"
)
SLOTS: Final = "sessions to open at the same time, on a remote server too (default: up to 64, on a server that xp starts)"
INSTEAD: Final = {
    "evaluate": "eval run=RUN@STEP",
    "rerun": "runs recipe RUN",
    "runs rerun": "runs recipe RUN",
    "runs resume": "resume=RUN",
}
"""Words that are not commands -> the command for them."""


@dataclass(frozen=True)
class Command:
    """One command."""

    help: str
    """One line of help, for the list of commands."""
    add: Add
    """Adds its arguments."""
    handler: str
    """Function that takes the arguments and returns the exit code: `module:name` below xp.cli, imported at need. Alone,
    `module` is `module:MODULE_command`."""


def _switch(parser: argparse._ActionsContainer, *words: str) -> None:
    """Adds a flag without a value: its spellings, then its help."""
    *flags, text = words
    parser.add_argument(*flags, action="store_true", help=text)


def _value(
    parser: argparse._ActionsContainer, name: str, metavar: str, text: str, **options: Any
) -> None:
    """Adds a flag with a value, or a word; `options` are argparse's."""
    parser.add_argument(name, metavar=metavar, help=text, **options)


def _sweep(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    _switch(parser, "-m", "--multirun", "comma-separated values make a sweep")


def _run(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    _switch(parser, "--again", "with -m: also run points that are finished")
    _switch(parser, "--lines", "plain lines instead of the panel on a terminal")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument(
        "-p",
        "--package",
        metavar="SECTION",
        help="with --cfg: print only this section, e.g. training",
    )
    _switch(parser, "--resolve", "with --cfg: no effect; values are always resolved")


def _plan(parser: argparse.ArgumentParser) -> None:
    _run(parser)
    _switch(parser, "--sft", "plan the fine-tuning alone, as `xp sft` runs it")
    _switch(parser, "--files", "print the files of every stage")
    _switch(parser, "--json", "the whole plan as JSON")
    _switch(parser, "--native", "print the native keys that the trainer receives")
    text = "where the keys of a training script, a YAML file or a list of arguments went"
    _value(parser, "--native-diff", "FILE", text, type=Path)
    text = "one line per value with memory, time, price; repeat to combine keys"
    _value(parser, "--compare", "KEY=A,B", text, action="append")


def _eval(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    parser.epilog = EVAL
    text = "cost limit; no episode begins after it (needs model.price_in, _out)"
    _value(parser, "--budget-usd", "X", text, type=amount)
    _value(parser, "--max-tokens-total", "N", "token limit; no episode begins after it", type=count)
    _switch(parser, "--again", "play finished evaluations again")
    form = parser.add_mutually_exclusive_group()
    _switch(form, "--json", "all figures as JSON")
    _switch(form, "--markdown", "the table as Markdown")
    _switch(form, "--latex", "the table as LaTeX")


def _search(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    _value(parser, "--trials", "N", "number of runs (20)", type=count, default=20)
    _switch(parser, "--again", "also run points that are finished")


def _install(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    _value(parser, "--python", "PATH", "interpreter of the new environment")
    _switch(parser, "--for-run", "install nothing if the run would be refused")


def _rescore(parser: argparse.ArgumentParser) -> None:
    _value(parser, "overrides", "RUN|key=value", "one run or two, and the rule", nargs="*")
    _switch(parser, "--json", "all steps and the comparison as JSON")
    parser.description = (
        f"{parser.description} Nothing is played. A rule is env.reward_fn=my_rewards:score or env.reward.reduction=max."
        " One run is compared with its untrained model, two runs with each other."
    )


def _replay(parser: argparse.ArgumentParser) -> None:
    _value(parser, "run", "RUN|BUNDLE", "name of a run, its directory, or a bundle (.zip)")
    _switch(parser, "--no-training", "compare the task set only, and train nothing")
    _outputs(parser)


def _explain(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    _switch(parser, "--json", "print JSON")
    parser.description = (
        f"{parser.description} Words without `=` are keys: explain training.kl_coef"
    )


def _doctor(parser: argparse.ArgumentParser) -> None:
    add_spec(parser)
    _switch(parser, "--json", "every finding as JSON")
    _value(parser, "--slots", "N", SLOTS, type=count)


def _options(parser: argparse.ArgumentParser) -> None:
    _value(parser, "group", "GROUP", "list what each option of this group is", nargs="?")
    _switch(
        parser, "--open", "with env: also splits and tools of environments without requirements"
    )
    add_config_dir(parser)
    _switch(parser, "--json", "as JSON")


def _report(parser: argparse.ArgumentParser) -> None:
    _value(parser, "runs", "RUN", f"{NAMES_OF_RUNS}; several are compared", nargs="+")
    parser.add_argument(
        "-o",
        "--page",
        type=Path,
        metavar="FILE",
        help="file of the page (default: the run's report.html)",
    )
    parser.add_argument(
        "--episodes",
        choices=["none", "chosen", "all"],
        help="episodes whose text is in the page: chosen (the best, median and worst of each step with their groups,"
        " and void ones), all, or none (default: chosen, and none for more than 6 runs); figures cover all episodes",
    )
    text = "the tokens and masks of these episodes too, by the run's own tokenizer, which takes some seconds to load"
    _switch(parser, "--tokens", text)
    parser.epilog = "outputs=DIR: use DIR instead of ./outputs; more: docs/report.md"


def _view(parser: argparse.ArgumentParser) -> None:
    _value(
        parser,
        "runs",
        "RUN",
        f"{NAMES_OF_RUNS}; several are compared; none: a page of all runs",
        nargs="*",
    )
    _value(parser, "--port", "N", "port on 127.0.0.1 (0: any free one)", type=int, default=0)
    parser.epilog = (
        "outputs=DIR: use DIR instead of ./outputs; Ctrl-C ends it\nmore: docs/report.md"
    )


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    parser.epilog = 'for example: eval "$(xp completion bash)"'


class Parser(argparse.ArgumentParser):
    """Raises XpError instead of ending the process; help names the list of the groups, that of xp itself has it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options
        )

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
    _value(
        parser, "overrides", "group=option|key=value", "differences from the defaults", nargs="*"
    )
    add_config_dir(parser)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    _value(
        parser,
        "--config-dir",
        "DIR",
        "directory of your own options",
        action="append",
        default=[],
        type=directory,
    )


def groups() -> str:
    """The groups with their options."""
    from xp.composition import GROUPS, options

    more = {"hardware": ", auto (this machine), GPUs x card (8xB200, 2x8xH100)"}
    lines = "\n".join(
        folded(f"  {group:10} {', '.join(options(group))}{more.get(group, '')}", 13)
        for group in GROUPS
    )
    return f"groups:\n{lines}"


def folded(text: str, indent: int = 0) -> str:
    """Text wrapped for the terminal, continuation lines indented; names are not split."""
    width = max(60, get_terminal_size().columns - 2)
    return fill(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _actions(parser: argparse.ArgumentParser) -> Any:
    return parser.add_subparsers(dest="action", required=True, metavar="ACTION")


def add_parser(subparsers: Any, name: str, text: str) -> Parser:
    """A command or an action; `text` is its line in the list and the description in its own help."""
    command: Parser = subparsers.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    _switch(command, "--debug", "show a traceback instead of one message")
    return command


def _outputs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "outputs=DIR: use DIR instead of ./outputs"


def add_env(parser: argparse.ArgumentParser) -> None:
    """The actions of `env`."""
    actions = _actions(parser)
    check = add_parser(actions, "check", "open, call and play an environment without a model")
    text = "env=NAME, URL, Org/Name or package.module:Class; tasks=4, tokenizer=DIR and overrides"
    _value(check, "words", "TARGET|key=value", text, nargs="+")
    _value(
        check,
        "--labels",
        "FILE",
        "compare env.judge with rows that a person labelled; play nothing",
        type=Path,
    )
    _value(
        check,
        "--budget-usd",
        "X",
        "with --labels: cost limit (needs the judge's prices)",
        type=amount,
    )
    add_config_dir(check)
    check.epilog = (
        'a row of --labels: {"prompt": "...", "answers": ["...", "..."], "labels": [1, 0]}'
    )
    _value(check, "--seconds", "N", "time limit of the check (120)", type=count, default=120)
    _value(check, "--slots", "N", SLOTS, type=count)
    _switch(check, "--json", "the report as JSON")
    new = add_parser(actions, "new", "write a working environment and its test, for you to edit")
    _value(new, "name", "NAME", "name of the module: small letters, digits and _")
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
    _switch(listing, "--json", "as JSON")
    show = add_parser(actions, "show", "tasks as the model will see them")
    _value(show, "key", "SET", "key of the set, or its first characters")
    show.add_argument(
        "-n", "--num-tasks", type=count, default=1, metavar="N", help="number of tasks (1)"
    )
    show.add_argument(
        "--purpose",
        choices=["train", "held_out"],
        help="only tasks of this purpose (default: both)",
    )
    _value(show, "--task", "ID", "this task only: member/split/index")
    profile = add_parser(
        actions, "profile", "pass rate of each training task over several tries of a model"
    )
    add_spec(profile)
    _value(profile, "--tries", "N", "episodes of each task (8)", type=count)
    _switch(
        profile, "--logged", "play nothing: mean rewards of rollouts that OpenReward has logged"
    )
    _value(profile, "--logged-model", "NAME", "the same, for the rollouts of this model")
    _switch(profile, "--json", "the rates as JSON")
    verify = add_parser(actions, "verify", "check every hash; exit code 6 if one is wrong")
    _value(
        verify,
        "keys",
        "SET",
        "keys of sets, or their first characters (default: all sets)",
        nargs="*",
    )
    _switch(verify, "--json", "the results as JSON")
    prune = add_parser(actions, "prune", "remove sets, leftovers and damaged sets")
    _value(prune, "--keep", "SET", "sets to keep", nargs="*", default=[])
    _switch(prune, "--yes", "remove them; without this, only list them")
    _switch(prune, "--json", "the list as JSON")
    for command in (listing, show, verify, prune):
        _outputs(command)
    profile.epilog = PROFILE


def _add_compare(compare: argparse.ArgumentParser) -> None:
    _value(compare, "names", "RUN", "names, prefixes or patterns (default: all runs)", nargs="*")
    form = compare.add_mutually_exclusive_group()
    for name in ("CSV", "Markdown", "JSON"):
        _switch(form, f"--{name.lower()}", f"as {name}")
    _switch(
        compare,
        "--paired",
        "the first RUN or evaluation against the others, task by task, with tests",
    )
    _value(
        compare,
        "--margin",
        "X",
        "with --paired: margin of equivalence, in units of reward",
        type=amount,
    )


def _add_episode(episode: argparse.ArgumentParser) -> None:
    _value(
        episode, "run", "RUN", "name of a run or an evaluation, a prefix of it, or its directory"
    )
    text = "train, evaluate/before, evaluate/after (default: train, if there is one)"
    _value(episode, "--phase", "NAME", text)
    _value(
        episode, "--step", "N", "rollout step as metrics.jsonl counts it (the last one)", type=int
    )
    _value(episode, "--index", "N", "index of the task in its split", type=int)
    _value(
        episode, "--sample", "N", "index among the task's episodes in that step, from 0", type=int
    )
    rank = episode.add_mutually_exclusive_group()
    for name in ("best", "median", "worst", "void"):
        rank.add_argument(
            f"--{name}",
            dest="rank",
            action="store_const",
            const=name,
            help=f"the {name} of the matching episodes",
        )
    _switch(episode, "--json", "its record in the trajectories, as JSON")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """The actions of `runs`; without one, the runs are listed."""
    actions = _actions(parser)

    def of_run(name: str, text: str) -> argparse.ArgumentParser:
        action = add_parser(actions, name, text)
        _value(action, "run", "RUN", "name of the run, or its directory OUTPUTS/runs/RUN")
        return action

    listing = add_parser(actions, "list", "every run, oldest first (the default)")
    _value(
        listing,
        "words",
        "key=value|TEXT",
        "only runs with these values, tags (tag=WORD) and texts",
        nargs="*",
    )
    _switch(listing, "--json", "as JSON")
    tag = add_parser(
        actions, "tag", "add tags to runs or evaluations, or remove them; set the note; print both"
    )
    _value(tag, "run", "RUN", NAMES_OF_RUNS)
    _value(tag, "words", "TAG", "words such as good-baseline; none: print the tags", nargs="*")
    _switch(tag, "--remove", "remove these tags instead")
    _value(tag, "--note", "TEXT", "sentence about the run; '' removes it")
    show = of_run("show", "one run: its stages with exit codes and times")
    text = (
        "show what the result depends on: digests of spec, code, model and tasks, versions, seeds"
    )
    _switch(show, "--lock", text)
    _switch(show, "--json", "as JSON")
    diagnose = of_run("diagnose", "verdict on a run, with its exit code and symptoms")
    _switch(diagnose, "--json", "as JSON")
    logs = of_run("logs", "log of the last stage")
    _switch(logs, "-f", "--follow", "continue until the run ends")
    fetch = of_run(
        "fetch", "copy the model and the trajectories of a run from its launcher's storage"
    )
    _switch(fetch, "--checkpoints", "the checkpoints too, which may be large")
    of_run("recipe", "print the command line that began a run, to run it again")
    bundle = of_run("bundle", "pack a run into one file, from which somebody else can run it again")
    _value(bundle, "--to", "FILE", "the file (RUN.zip)", type=Path)
    _switch(bundle, "--no-tasks", "without the task set, if its licence forbids it")
    _switch(bundle, "--no-episodes", "without the recorded episodes")
    publish = of_run(
        "publish",
        "publish a run's model, with a card, and its episodes: into a directory, or on the hub",
    )
    _value(publish, "--to", "PLACE", "a new directory, or hub:ORG/NAME", required=True)
    _switch(publish, "--no-episodes", "only the model")
    _switch(publish, "--dry-run", "print the files and the model card; publish nothing")
    publish.description = f"{publish.description} On the hub: a model NAME and a data set NAME-episodes, private if they are new."
    of_run("cancel", "stop a run")
    trust = of_run("trust", "allow resume although your code changed")
    _value(
        trust,
        "--accept",
        "FACT",
        "name from the refusal's message",
        nargs="+",
        required=True,
    )
    _add_episode(add_parser(actions, "episode", "the text of one episode"))
    _add_compare(add_parser(actions, "compare", "runs by held-out reward, best first"))
    for choice in actions.choices.values():
        _outputs(choice)


COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command("prepare tasks, train, evaluate (the default command)", _run, "commands:run"),
    "plan": Command("show everything that would run; run nothing", _plan, "commands:plan"),
    "prepare": Command("prepare the tasks only", _sweep, "commands:prepare"),
    "sft": Command(
        "fine-tune on episodes, without a training (sft.data=...)", _sweep, "commands:sft"
    ),
    "eval": Command(
        "play any model on any environment, with statistics", _eval, "evaluation:eval_command"
    ),
    "search": Command(
        "search values with Optuna: training.learning_rate='interval(1e-4,1e-3)'",
        _search,
        "commands:search",
    ),
    "install": Command(
        "make the Python that the trainer needs, from its lock", _install, "install"
    ),
    "options": Command(
        "list the groups and their options, or the options of one group with what they are",
        _options,
        "options",
    ),
    "explain": Command(
        "explain a key (value, origin, meaning, each backend's rendering) or a metric",
        _explain,
        "explain",
    ),
    "doctor": Command("check this machine against a plan", _doctor, "commands:doctor"),
    "env": Command(
        "environments: check one without a model, or its judge; create one",
        add_env,
        "environments:env_command",
    ),
    "tasks": Command("the task store: list, show, profile, verify, prune", add_tasks, "tasks"),
    "runs": Command(
        "runs: list, show, diagnose, logs, tag, recipe, bundle, publish, fetch, cancel, trust, episode, compare",
        add_runs,
        "runs",
    ),
    "replay": Command(
        "run a recorded run again, and list what differs",
        _replay,
        "reproduce:replay_command",
    ),
    "rescore": Command(
        "score the recorded episodes of a run by another reward rule", _rescore, "rescore"
    ),
    "report": Command(
        "write one offline page of runs: curves, episodes, comparison", _report, "report"
    ),
    "view": Command(
        "serve a page of all runs, or the report of some, on 127.0.0.1, also during a run",
        _view,
        "report:view_command",
    ),
    "completion": Command(
        "print a script for completion of `xp` in a shell", _completion, "completion"
    ),
}
"""Commands, in the order of `--help`."""
