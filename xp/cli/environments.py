"""`python -m xp env check|list|new`: reports on environments, their list, and skeletons of new ones."""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from xp.cli.information import first_sentence, show_options
from xp.composition import compose, options
from xp.env_check.measure import Measured, measure
from xp.env_check.report import EnvReport, report
from xp.env_check.watch import CLOSE_S, Watch, close_within
from xp.envs.base import EnvFault, Message, Provider
from xp.envs.config import Chat, SandboxKind
from xp.envs.load import load_provider
from xp.envs.slots import num_slots_of
from xp.errors import ExitCode, XpError, nearest
from xp.evaluation.entries import CLASS
from xp.lib.text import counted
from xp.planning.episode import CATALOG_KEY, chat_of, env_config, episode_environ, needs_catalog_key
from xp.run_records.resume import split_off
from xp.run_records.run_directory import resource_errors
from xp.spec import EnvMember, RunSpec

NUM_TASKS: Final = 4


def check_command(words: Sequence[str], seconds: int, num_slots: int | None, *, as_json: bool) -> int:
    """Checks environments; the exit code is ENVIRONMENT if one cannot be trained on or the time was too short.

    Args:
        words: the environment, then `tasks=N`, `tokenizer=DIR` and overrides.
        seconds: time limit.
        num_slots: sessions to open at the same time; None: some on a server that is started here, none on another.
        as_json: whether the reports are printed as JSON.
    """
    named, rest = split_off(("tasks", "tokenizer"), words)
    if not rest:
        raise XpError("env check: name an environment: env=NAME, a URL, Org/Name or package.module:Class")
    tasks = named.get("tasks", str(NUM_TASKS))
    if not tasks.isdigit() or int(tasks) < 1:
        raise XpError(f"tasks={tasks}: the number of tasks to play must be a whole number from 1 on")
    spec = compose(_as_overrides(rest))
    reports = check(spec, int(tasks), named.get("tokenizer"), seconds, num_slots)
    if as_json:
        print(json.dumps([one.as_dict() for one in reports], indent=2, ensure_ascii=False))
    else:
        for one in reports:
            show_report(one)
    return ExitCode.ENVIRONMENT if any(one.faults or one.stopped for one in reports) else ExitCode.OK


def check(
    spec: RunSpec, num_tasks: int, tokenizer: str | None, seconds: float, num_slots: int | None = None
) -> list[EnvReport]:
    """A report for each member of the mixture, in its order; all together take at most about `seconds`."""
    count = token_counter(tokenizer, chat_of(spec)) if tokenizer else None
    ends = time.monotonic() + seconds
    return [_check_member(spec, name, num_tasks, num_slots, count, Watch(name, ends)) for name in spec.env.members]


def _check_member(
    spec: RunSpec,
    name: str,
    num_tasks: int,
    num_slots: int | None,
    count: Callable[[Sequence[Message], str], int] | None,
    watch: Watch,
) -> EnvReport:
    member, group_size = spec.env.members[name], spec.training.group_size
    rules = env_config(name, member, spec)
    # The check must find faults, so no retry on a second session may hide one.
    rules = replace(rules, limits=replace(rules.limits, retries_per_episode=0))
    measured, raised = Measured(), list[BaseException]()
    providers: list[Provider] = []

    def work() -> None:
        try:
            watch.doing("connecting")
            providers.append(provider := load_provider(rules, environ := episode_environ(spec)))
            split = _split(member, provider.splits())
            how: dict[str, Any] = {"num_tasks": num_tasks, "group_size": group_size}
            how["num_slots"] = num_slots_of(rules, num_slots)
            measure(provider, rules, split, **how, environ=environ, measured=measured, watch=watch)
        except BaseException as error:  # raised below, on the command's own thread
            raised.append(error)

    try:
        is_whole = watch.run(work)
        # Exceptions after the end of the time come from the close.
        fault = raised[0] if is_whole and raised else None
        measured = measured.until_now()
        if not is_whole or (watch.is_over and fault is None):
            measured.stopped = f"{watch.now}, which had taken {watch.seconds_of_phase:.0f} s"
    finally:
        for provider in providers:
            close_within(provider.close, CLOSE_S)
    if isinstance(fault, EnvFault):
        return EnvReport(name, {}, (f"it does not answer: {type(fault).__name__}: {fault}",), ())
    if fault is not None:
        raise fault
    limit = spec.training.max_prompt_tokens
    return report(rules, measured, group_size=group_size, max_prompt_tokens=limit, count_tokens=count)


def _split(member: EnvMember, splits: Sequence[str]) -> str:
    """The split to play: a training split, or any split of an environment without training tasks."""
    return next((split for split in (*member.train.split, *splits) if split in splits), "train")


def token_counter(directory: str, rules: Chat) -> Callable[[Sequence[Message], str], int]:
    """Makes a counter of a prompt's tokens with a Hugging Face directory's tokenizer; raises XpError if it has none."""
    from transformers import AutoTokenizer

    from xp.episode.tokens import ChatTokens

    if not Path(directory).is_dir():
        raise XpError(f"tokenizer={directory}: no such directory")
    chat = ChatTokens(AutoTokenizer.from_pretrained(directory), rules)
    return lambda messages, tools: len(chat.prompt(messages, tools))


def show_report(one: EnvReport) -> None:
    from xp.cli.display import console

    out = console()
    out.print(one.name, style="bold")
    for fact, value in one.facts.items():
        out.print(f"  {fact:24} {value}")
    if one.stopped:
        out.print(f"  stopped: the time was over while {one.stopped}")
        out.print("  the figures above are of what was measured until then; --seconds N gives it more")
    for warning in one.warnings:
        out.print(f"  note: {warning}")
    for fault in one.faults:
        out.print(f"  fault: {fault}")
    if not one.faults and not one.warnings and not one.stopped:
        out.print("  no problems found")


def _as_overrides(rest: Sequence[str]) -> list[str]:
    """Replaces a bare target by the option for its kind of environment; other words are unchanged."""
    target, others = rest[0], list(rest[1:])
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
    chosen = [] if any(text.startswith("env=") for text in others) else ["env=openreward"]
    return [*chosen, f"env.{address}='{target}'", *others]


HOSTED_NEEDS: Final = {
    "reasoning_gym": "package reasoning-gym",
    "verifiers": "package verifiers",
    "inspect": "package inspect_ai",
}
"""Provider -> package that the run's Python must have for it."""


@dataclass(frozen=True)
class InstalledEnvironment:
    """One option of the group `env`."""

    name: str
    about: str
    providers: Sequence[str]
    """Providers of its members."""
    max_turns: int | None
    needs: Sequence[str]
    """Keys, programs, packages and addresses that a run needs."""
    splits: Mapping[str, int] | None = None
    """Split -> number of tasks; None: the environment was not opened."""
    tools: Sequence[str] | None = None
    fault: str | None = None
    """Reason why the environment could not be opened."""


def list_command(config_dirs: Sequence[Path], *, is_opened: bool, as_json: bool) -> int:
    """Prints the list of environments."""
    environments = listed(config_dirs, is_opened=is_opened)
    if as_json:
        print(json.dumps([asdict(one) for one in environments], indent=2))
    else:
        show_options({one.name: _line(one) for one in environments})
    return ExitCode.OK


def listed(config_dirs: Sequence[Path], *, is_opened: bool) -> Iterator[InstalledEnvironment]:
    """Yields every option of the group `env`, sorted by name.

    Args:
        config_dirs: directories with the user's own options.
        is_opened: whether environments without requirements are opened, to list their splits and tools.
    """
    for name, file in options("env", config_dirs).items():
        about = first_sentence(file)
        try:
            spec = compose([f"env={name}"], config_dirs)
        except XpError as error:
            yield InstalledEnvironment(name, about, (), None, (_what_is_missing(str(error)),))
            continue
        members = spec.env.members
        needs = tuple(dict.fromkeys(need for member in members.values() for need in _needs(member)))
        providers = tuple(dict.fromkeys(member.provider for member in members.values()))
        turns = max(member.max_turns for member in members.values())
        env = InstalledEnvironment(name, about, providers, turns, needs)
        yield _opened(env, spec) if is_opened and not needs and len(members) == 1 else env


def _line(one: InstalledEnvironment) -> str:
    """What it is, needs without the explanations in brackets, which --json has, and what was found by opening it."""
    parts = [one.about]
    if one.max_turns is not None:
        parts.append(f"{'+'.join(one.providers)}, {counted(one.max_turns, 'turn')}")
    if needs := [need for need in one.needs if need not in one.about]:
        parts.append("needs " + re.sub(r" \([^)]*\)", "", ", ".join(needs)))
    if one.splits is not None and one.tools is not None:
        parts.append(", ".join(f"{split} {size:,}" for split, size in one.splits.items()))
        parts.append(f"tools: {', '.join(one.tools) or 'none'}")
    return "; ".join([*parts, *([one.fault] if one.fault else [])])


def _what_is_missing(error: str) -> str:
    """Last clause of a fault, which names the missing value."""
    text = error.splitlines()[0]
    if "give exactly one of " in text:
        return text.rpartition("give exactly one of ")[2].replace(" and ", " or ")
    return text.rpartition(": ")[2]


def _needs(member: EnvMember) -> Iterator[str]:
    if needs_catalog_key(member):
        yield CATALOG_KEY
    yield from (source.from_env if source else name.upper() for name, source in member.secrets.items())
    if member.image is not None or member.sandbox is SandboxKind.DOCKER:
        yield "Docker"
    if member.provider in HOSTED_NEEDS and member.python is None:
        yield HOSTED_NEEDS[member.provider]


def _opened(env: InstalledEnvironment, spec: RunSpec) -> InstalledEnvironment:
    name, member = next(iter(spec.env.members.items()))
    with ExitStack() as stack:
        try:
            provider = load_provider(env_config(name, member, spec), os.environ)
            stack.callback(provider.close)
            splits = {split: provider.num_tasks(split) for split in provider.splits()}
            session = provider.open(provider.tasks(next(iter(splits)), [0])[0])
            stack.callback(session.close)
            return replace(env, splits=splits, tools=[tool.name for tool in session.tools()])
        except (XpError, EnvFault) as error:
            return replace(env, fault=str(error).splitlines()[0])


MODULE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
MODULE: Final = "my_environment"
SKELETON_CLASS: Final = "MyEnvironment"
"""Class name in the skeletons; the author's name replaces it."""
WORDS: Final = {
    "graded": ("env=graded", "env.grader={module}:{cls}"),
    "ors": ("env=openreward", "env.serve={module}:{cls}"),
    "openenv": ("env=openenv", "env.serve={module}:{cls}", "env.rows={module}:rows"),
    "verifiers": ("env=verifiers", "env.target={module}"),
}
"""Kind -> overrides that select such an environment."""


def new_command(name: str, kind: str) -> int:
    """Creates an environment in the current directory and prints the next steps."""
    words = " ".join(new_environment(name, kind, Path.cwd()))
    print(f"wrote {name}.py and test_{name}.py")
    install = () if importlib.util.find_spec("pytest") else ("pip install pytest",)
    has_script = "def solve(" in Path(f"{name}.py").read_text(encoding="utf-8")
    run = f"xp {words} sft.data=solve" if has_script else f"xp {words}"
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
            f"env new {name}: a name is small letters, digits and _, and begins with a letter", ExitCode.CONFIG
        )
    texts = {folder / f"{name}.py": f"{kind}.txt", folder / f"test_{name}.py": f"{kind}_test.txt"}
    if there := [str(path) for path in texts if path.exists() or path.is_symlink()]:
        raise XpError(f"env new {name}: {' and '.join(there)}: already there, and left alone", ExitCode.CONFIG)
    if (spec := importlib.util.find_spec(name)) is not None:
        raise XpError(
            f"env new {name}: there is a module of that name ({spec.origin or 'a package'}); take another",
            ExitCode.CONFIG,
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
    """Environments: check one or each of a mixture, create one, list them."""
    if args.action == "new":
        return new_command(args.name, args.kind)
    if args.action == "list":
        return list_command(args.config_dir, is_opened=args.open, as_json=args.json)
    return check_command(args.words, args.seconds, args.slots, as_json=args.json)
