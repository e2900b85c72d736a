"""The command line: compose -> plan -> dispatch; an XpError becomes one clear message and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.security.terminal import guarded

USAGE = """\
python -m xp [COMMAND] [group=option ...] [key=value ...]

commands:
  run        (the default) prepare tasks, train, evaluate
  plan       show everything that would run, and run nothing
  prepare    run task preparation alone
  evaluate   play the held-out tasks with a run's model: run=RUN [checkpoint=STEP]
  search     let Optuna choose within ranges: training.learning_rate='interval(1e-4,1e-3)' [--trials N]
  install    make the Python that the trainer needs, from its lock: install backend=skyrl hardware=a100x4
  parity     what each backend receives of every field of a spec
  explain    one key: its value, where it comes from, what it means, what each backend makes of it
  doctor     hold this machine against a plan: versions, accelerators, secrets, disk, launcher, template, environments
  env        env check TARGET | env=NAME: play an environment without a model; latency, rewards, variance, lengths
  tasks      look at the task store: list, show, verify, prune
  runs       look at runs: list, show RUN, logs RUN, cancel RUN, resume RUN, trust RUN, compare [RUN ...]

examples:
  python -m xp                                            learn small murder mysteries on this machine's CPU
  python -m xp seed=2 training.num_steps=30               the same, changed
  python -m xp -m seed=1,2,3                              a sweep; the same again goes on where it was cut
  python -m xp plan training.group_size=16 --files        what would run, with every file
  python -m xp resume=RUN                                 go on from RUN's last checkpoint
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, its output kept harmless; returns the exit code."""
    with guarded():
        return _guarded(argv)


def _guarded(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in arguments
    try:
        return _run(arguments)
    except XpError as error:
        if is_debug:
            raise
        print(f"xp: {error}", file=sys.stderr)
        return int(error.code)
    except KeyboardInterrupt:
        print("xp: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return int(ExitCode.OK)


def _run(arguments: list[str]) -> int:
    from xp.cli import commands

    name, rest = "run", arguments
    if arguments and arguments[0] in commands.COMMANDS:
        name, rest = arguments[0], arguments[1:]
    if name == "tasks":
        return commands.tasks(rest)
    if name == "runs":
        return commands.runs(rest)
    if name == "env":
        return commands.env(rest)
    parser = _parser()
    own = {flag for action in parser._actions for flag in action.option_strings}
    options, overrides = parser.parse_known_args([*_with_values(rest, own)])
    request = commands.Request(
        overrides=(*options.overrides, *overrides),
        config_dirs=tuple(_directory(text) for text in options.config_dir),
        is_sweep=options.multirun,
        with_files=options.files,
        as_json=options.json,
        again=options.again,
        trials=options.trials,
        python=options.python,
        for_run=options.for_run,
    )
    if options.cfg:
        return commands.show_config(request)
    return commands.COMMANDS[name](request)


def _with_values(texts: Sequence[str], own: Container[str]) -> Iterator[str]:
    """The texts, a flag of another program's joined with the value after it, so that one answer is given for both."""
    rest = list(texts)
    while rest:
        text = rest.pop(0)
        is_foreign = text.startswith("--") and text != "--" and "=" not in text and text not in own
        if is_foreign and rest and not rest[0].startswith("-") and "=" not in rest[0]:
            text = f"{text}={rest.pop(0)}"
        yield text


def _directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise XpError(f"--config-dir {text}: no such directory")
    return path


def _parser() -> argparse.ArgumentParser:
    from xp import __version__
    from xp.compose import GROUPS, options

    groups = "\n".join(f"  {group:10} {', '.join(options(group))}" for group in GROUPS)
    parser = argparse.ArgumentParser(
        prog="xp",
        usage=USAGE,
        epilog=f"groups:\n{groups}\n\nkeys: python -m xp --cfg job; exit codes: docs/exit-codes.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("overrides", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-m", "--multirun", action="store_true", help="comma-separated values make a sweep")
    parser.add_argument("--cfg", choices=["job"], help="print the composed configuration and stop")
    parser.add_argument("--config-dir", action="append", default=[], metavar="DIR", help="your own group options")
    parser.add_argument("--files", action="store_true", help="plan: print the files of every stage too")
    parser.add_argument("--json", action="store_true", help="plan: the whole plan as JSON")
    parser.add_argument("--again", action="store_true", help="-m: run the points that are done already, too")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="search: runs to start (20)")
    parser.add_argument("--python", metavar="PATH", help="install: the interpreter to build on")
    parser.add_argument("--for-run", action="store_true", help="install: nothing where the run itself would be refused")
    parser.add_argument("--debug", action="store_true", help="a traceback instead of one message")
    parser.add_argument("--version", action="version", version=f"xp {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
