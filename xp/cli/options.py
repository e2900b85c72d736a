"""`python -m xp options`: the groups with their options, and the options of one group with what they are."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from xp.cli.arguments import groups
from xp.cli.table import print_json, wrapped
from xp.composition import GROUPS, compose, options
from xp.envs.base import EnvFault
from xp.errors import ExitCode, XpError, nearest
from xp.lib.terminal import shown
from xp.lib.text import counted, first_line
from xp.planning.episode import CATALOG_KEY, episode_config, needs_catalog_key
from xp.spec import EnvMember, RunSpec
from xp.spec.env import HOSTED, SandboxKind


def options_command(args: Namespace) -> int:
    """The groups with their options, or the options of one group with what they are."""
    group = args.group
    if args.open and group != "env":
        raise XpError("--open belongs to options env")
    if group is not None and group not in GROUPS:
        raise XpError(
            f"{group}: no such group{nearest(group, GROUPS)}; groups are {', '.join(GROUPS)}"
        )
    if group is None:
        if args.json:
            print_json({name: list(options(name, args.config_dir)) for name in GROUPS})
        else:
            print(groups())
        return ExitCode.OK
    if group == "env":
        environments = list(listed(args.config_dir, is_opened=args.open))
        if args.json:
            print_json(environments)
        else:
            show_options({environment.name: _line(environment) for environment in environments})
        return ExitCode.OK
    sentences = {
        name: first_sentence(file) for name, file in options(group, args.config_dir).items()
    }
    if group == "hardware":
        from xp.spec.hardware import cards

        sentences["auto"] = "This machine"
        sentences["8xB200"] = (
            f"GPUs x card, or nodes x GPUs x card (2x8xH100); cards: {', '.join(cards())}"
        )
    if args.json:
        print_json([{"name": name, "about": about} for name, about in sentences.items()])
    else:
        show_options(sentences)
    return ExitCode.OK


def first_sentence(file: Path) -> str:
    """Description of an option: the first sentence of the comment that its file begins with."""
    lines = [
        line
        for line in file.read_text(encoding="utf-8").splitlines()
        if not line.startswith("# @package")
    ]
    comment = " ".join(
        line.lstrip("# ") for line in takewhile(lambda line: line.startswith("#"), lines)
    )
    return re.split(r"(?<=[^ .]{3})\. ", comment)[0].rstrip(".")  # not after "Dr."


def show_options(sentences: Mapping[str, str]) -> None:
    """Prints one line for each option: its name and what it is."""
    width = max(map(len, sentences), default=0)
    for name, about in sentences.items():
        print(wrapped(f"  {shown(name):{width}}  {shown(about)}".rstrip()))


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
    """Split -> number of tasks. None means that the environment was not opened."""
    tools: Sequence[str] | None = None
    fault: str | None = None
    """Reason why the environment could not be opened, or what its option needs first."""


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
            fault = first_line(error)
            yield InstalledEnvironment(name, about, (), None, (), fault=fault)
            continue
        members = spec.env.members
        needs = tuple(dict.fromkeys(need for member in members.values() for need in _needs(member)))
        providers = tuple(dict.fromkeys(member.provider for member in members.values()))
        turns = max(member.max_turns for member in members.values())
        env = InstalledEnvironment(name, about, providers, turns, needs)
        yield _opened(env, spec) if is_opened and not needs and len(members) == 1 else env


def _line(environment: InstalledEnvironment) -> str:
    """Description, needs without the explanations in brackets, which --json has, and results of opening it."""
    parts = [environment.about]
    if environment.max_turns is not None:
        parts.append(f"{'+'.join(environment.providers)}, {counted(environment.max_turns, 'turn')}")
    needs = [need for need in environment.needs if need not in environment.about]
    if needs:
        parts.append("needs " + re.sub(r" \([^)]*\)", "", ", ".join(needs)))
    if environment.splits is not None and environment.tools is not None:
        parts.append(", ".join(f"{split} {size:,}" for split, size in environment.splits.items()))
        parts.append(f"tools: {', '.join(environment.tools) or 'none'}")
    if environment.fault:
        parts.append(environment.fault)
    return "; ".join(parts)


def _needs(member: EnvMember) -> Iterator[str]:
    if needs_catalog_key(member):
        yield CATALOG_KEY
    yield from (
        source.from_env if source else name.upper() for name, source in member.secrets.items()
    )
    if member.image is not None or member.sandbox is SandboxKind.DOCKER:
        yield "Docker"
    if member.provider in HOSTED and member.python is None:
        yield f"package {HOSTED[member.provider]}"
    if member.sandbox is not None and member.sandbox.is_cloud and member.python is None:
        yield "package harbor"


def _opened(env: InstalledEnvironment, spec: RunSpec) -> InstalledEnvironment:
    from xp.envs.config import load_provider

    (config, *_) = episode_config(spec).members.values()
    with ExitStack() as stack:
        try:
            provider = load_provider(config, os.environ)
            stack.callback(provider.close)
            splits = {split: provider.num_tasks(split) for split in provider.splits()}
            session = provider.open(provider.tasks(next(iter(splits)), [0])[0])
            stack.callback(session.close)
            return replace(env, splits=splits, tools=[tool.name for tool in session.tools()])
        except (XpError, EnvFault) as error:
            return replace(env, fault=first_line(error))
