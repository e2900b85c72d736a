"""`python -m xp env check|new`: reports on environments, and skeletons of new ones."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xp.checks.env_check.measure import Measured, measure
from xp.checks.env_check.report import EnvReport, report
from xp.checks.env_check.watch import CLOSE_S, Watch, close_within
from xp.cli.table import print_json
from xp.composition import compose, options
from xp.envs import picture_store
from xp.envs.base import EnvFault, Message, Provider
from xp.envs.config import load_provider
from xp.envs.picture_store import PictureStore
from xp.envs.slots import num_slots_of
from xp.errors import ExitCode, XpError, nearest
from xp.execution.resume import split_off
from xp.execution.run_directory import resource_errors
from xp.planning.episode import episode_config, episode_environ, spec_in_job
from xp.results.evaluation.entries import CLASS
from xp.spec import RunSpec

if TYPE_CHECKING:
    from xp.episode.tokens import ChatTokens

NUM_TASKS: Final = 4
MODULE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
MODULE: Final = "my_environment"
SKELETON_CLASS: Final = "MyEnvironment"
"""Class name in the skeletons; the author's name replaces it."""
WORDS: Final = {
    "graded": ("env=graded", "env.grader={module}:{cls}"),
    "ors": ("env=openreward", "env.serve={module}:{cls}"),
    "openenv": ("env=openenv", "env.serve={module}:{cls}", "env.rows={module}:rows"),
    "verifiers": ("env=verifiers", "env.target={module}"),
    "harness": (
        "env=harness",
        "env.sandbox=none",
        "env.rows={module}:rows",
        "env.options.command=python {module}.py {{prompt_file}}",
        "env.options.grade=python {{program}}/{module}.py grade {{row_file}} {{answer_file}}",
    ),
}
"""Kind -> overrides that select such an environment."""


def check_command(args: Namespace) -> int:
    """Checks environments, or their judge; the exit code is ENVIRONMENT if one cannot be trained on, the time was too
    short, or the judge gave no verdict."""
    named, rest = split_off(("tasks", "tokenizer"), args.words)
    if not rest:
        raise XpError(
            "env check: name an environment: env=NAME, a URL, Org/Name or package.module:Class"
        )
    tasks = named.get("tasks", str(NUM_TASKS))
    if not tasks.isdigit() or int(tasks) < 1:
        raise XpError(
            f"tasks={tasks}: the number of tasks to play must be a whole number from 1 on"
        )
    spec = compose(_as_overrides(rest), args.config_dir)
    if args.labels is not None:
        from xp.cli.judge import check_judge

        return check_judge(spec, args.labels, args.budget_usd, as_json=args.json)
    if args.budget_usd is not None:
        raise XpError("--budget-usd belongs to --labels FILE")
    reports = check(spec, int(tasks), named.get("tokenizer"), args.seconds, args.slots)
    if args.json:
        print_json([member.as_dict() for member in reports])
    else:
        for member in reports:
            show_report(member)
    if any(member.faults or member.stopped for member in reports):
        return ExitCode.ENVIRONMENT
    return ExitCode.OK


def check(
    spec: RunSpec,
    num_tasks: int,
    tokenizer: str | None,
    seconds: float,
    num_slots: int | None = None,
) -> list[EnvReport]:
    """A report for each member of the mixture, in its order; all together take at most about `seconds`."""
    chat = chat_of(tokenizer, spec) if tokenizer else None
    ends = time.monotonic() + seconds
    return [
        _check_member(spec, name, num_tasks, num_slots, chat, Watch(name, ends))
        for name in spec.env.members
    ]


def _check_member(
    spec: RunSpec,
    name: str,
    num_tasks: int,
    num_slots: int | None,
    chat: ChatTokens | None,
    watch: Watch,
) -> EnvReport:
    member = spec.env.members[name]
    group_size = spec.training.group_size
    rules = episode_config(spec).members[name]
    # The check must find faults, so no retry on a second session may hide one.
    limits = rules.limits.model_copy(update={"retries_per_episode": 0})
    rules = rules.model_copy(update={"limits": limits})
    measured = Measured()
    raised = list[BaseException]()
    providers: list[Provider] = []

    def work() -> None:
        nonlocal measured
        try:
            watch.doing("connecting")
            environ = episode_environ(spec)
            if spec.model.images is not None:
                environ[picture_store.VARIABLE] = str(PictureStore.of_environ({}).directory)
            provider = load_provider(rules, environ)
            providers.append(provider)
            # A training split, or any split of an environment without training tasks.
            known = provider.splits()
            split = next(
                (split for split in (*member.train.split, *known) if split in known), "train"
            )
            for measured in measure(  # noqa: B007 - the last ones are reported
                provider,
                rules,
                split,
                num_tasks=num_tasks,
                group_size=group_size,
                environ=environ,
                watch=watch,
                num_slots=num_slots_of(rules, num_slots),
            ):
                pass
        except BaseException as error:  # raised below, on the command's own thread
            raised.append(error)

    try:
        is_whole = watch.run(work)
        # Exceptions after the end of the time come from the close.
        fault = raised[0] if is_whole and raised else None
        result = measured
        if not is_whole or (watch.is_over and fault is None):
            result = replace(result, stopped=f"{watch.now}, for {watch.seconds_of_phase:.0f} s")
    finally:
        for provider in providers:
            close_within(provider.close, CLOSE_S)
    if isinstance(fault, EnvFault):
        return EnvReport(name, {}, (f"it does not answer: {type(fault).__name__}: {fault}",), ())
    if fault is not None:
        raise fault
    reader = None if chat is None else chat.pictures
    return report(
        rules,
        result,
        group_size=group_size,
        max_prompt_tokens=spec.training.max_prompt_tokens,
        count_tokens=None if chat is None else partial(_num_tokens, chat),
        count_pictures=None if reader is None else reader.num_tokens,
    )


def _num_tokens(chat: ChatTokens, messages: Sequence[Message], tools: str) -> int:
    return len(chat.prompt(messages, tools))


def chat_of(directory: str, spec: RunSpec) -> ChatTokens:
    """The tokenizer of a Hugging Face directory, with its processor if pictures are on; raises XpError if it has none."""
    if not Path(directory).is_dir():
        raise XpError(f"tokenizer={directory}: no such directory")
    from xp.worker.tasks import model_chat

    return model_chat(directory, spec_in_job(spec), store=PictureStore.of_environ({}))


def show_report(member: EnvReport) -> None:
    from xp.cli.display import console

    out = console()
    out.print(member.name, style="bold")
    for fact, value in member.facts.items():
        out.print(f"  {fact:24} {value}")
    if member.stopped:
        out.print(f"  stopped: the time limit was reached while {member.stopped}")
        out.print("  the figures above are those until then; --seconds N allows more time")
    for warning in member.warnings:
        out.print(f"  note: {warning}")
    for fault in member.faults:
        out.print(f"  fault: {fault}")
    if not member.faults and not member.warnings and not member.stopped:
        out.print("  no problems found")


def _as_overrides(rest: Sequence[str]) -> list[str]:
    """Replaces a bare target by the option for its kind of environment; other words are unchanged."""
    target = rest[0]
    others = list(rest[1:])
    key, is_override, _ = target.partition("://")[0].partition("=")
    if is_override and ":" not in key:  # An address may have an equals sign too.
        return list(rest)
    if not any(character in target for character in "/:.@"):
        known = options("env")
        raise XpError(
            f"{target}: no environment{nearest(f'env={target}', [f'env={name}' for name in known])}; give env=NAME,"
            f" a URL, Org/Name or package.module:Class; options of env are {', '.join(known)}"
        )
    address = "serve" if CLASS.fullmatch(target) else "target"
    words = [f"env.{address}='{target}'", *others]
    if any(text.startswith("env=") for text in others):
        return words
    return ["env=openreward", *words]


def new_command(name: str, kind: str) -> int:
    """Creates an environment in the current directory and prints the next steps."""
    words = shlex.join(new_environment(name, kind, Path.cwd()))
    print(f"wrote {name}.py and test_{name}.py")
    install = () if importlib.util.find_spec("pytest") else ("pip install pytest",)
    has_script = kind != "harness" and "def solve(" in Path(f"{name}.py").read_text(
        encoding="utf-8"
    )
    run = f"xp {words}"
    if has_script:
        run += " sft.data=solve"
    for command in (*install, f"pytest test_{name}.py", f"xp env check {words}", run):
        print(f"  python -m {command}")
    return ExitCode.OK


def new_environment(name: str, kind: str, folder: Path) -> list[str]:
    """Writes `MODULE_NAME.py` and `test_NAME.py` into a folder; returns the overrides that select the environment.

    Raises:
        XpError: CONFIG for a name that cannot be a new module's, or a file that exists already; RESOURCE if the folder
            cannot be written, and then no file is left.
    """
    cls = "".join(part.capitalize() for part in name.split("_"))
    if not MODULE_NAME.fullmatch(name) or keyword.iskeyword(name):
        raise XpError(
            f"env new {name}: a name is small letters, digits and _, and begins with a letter"
        )
    texts = {folder / f"{name}.py": f"{kind}.txt", folder / f"test_{name}.py": f"{kind}_test.txt"}
    there = [str(path) for path in texts if path.exists() or path.is_symlink()]
    if there:
        raise XpError(f"env new {name}: {' and '.join(there)}: already there, not changed")
    spec = importlib.util.find_spec(name)
    if spec is not None:
        raise XpError(
            f"env new {name}: there is a module of that name ({spec.origin or 'a package'}); take another"
        )
    written: list[Path] = []
    try:
        for path, skeleton in texts.items():
            text = files("xp.cli.skeletons").joinpath(skeleton).read_text(encoding="utf-8")
            with resource_errors(path), path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text.replace(MODULE, name).replace(SKELETON_CLASS, cls))
    except XpError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return [word.format(module=name, cls=cls) for word in WORDS[kind]]


def env_command(args: Namespace) -> int:
    """Environments: check one or each of a mixture, or create one."""
    if args.action == "new":
        return new_command(args.name, args.kind)
    return check_command(args)
