"""`python -m xp env list`: installed environments, their requirements, and optionally their splits and tools."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from xp.cli.table import Column, show_table
from xp.compose import compose, options
from xp.envs.base import EnvFault
from xp.envs.config import SandboxKind
from xp.envs.load import load_provider
from xp.errors import ExitCode, XpError
from xp.planning.episode import CATALOG_KEY, env_config, needs_catalog_key
from xp.spec import EnvMember, RunSpec

COLUMNS: Final = (
    Column("env", 0),
    Column("provider", 4),
    Column("turns", 3),
    Column("needs", 1),
    Column("splits, tools", 2),
)
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
    found = listed(config_dirs, is_opened=is_opened)
    if as_json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        show_table(COLUMNS, [_row(one) for one in found])
    return ExitCode.OK


def listed(config_dirs: Sequence[Path], *, is_opened: bool) -> Iterator[InstalledEnvironment]:
    """Yields every option of the group `env`, sorted by name.

    Args:
        config_dirs: directories with the user's own options.
        is_opened: whether environments without requirements are opened, to list their splits and tools.
    """
    for name in options("env", config_dirs):
        try:
            spec = compose([f"env={name}"], config_dirs)
        except XpError as error:
            yield InstalledEnvironment(name, (), None, (_what_is_missing(str(error)),))
            continue
        members = spec.env.members
        needs = tuple(dict.fromkeys(need for member in members.values() for need in _needs(member)))
        providers = tuple(dict.fromkeys(member.provider for member in members.values()))
        found = InstalledEnvironment(name, providers, max(member.max_turns for member in members.values()), needs)
        yield _opened(found, spec) if is_opened and not needs and len(members) == 1 else found


def _row(one: InstalledEnvironment) -> Mapping[str, Any]:
    """Cells of the table: needs without the explanations in brackets, which --json has."""
    splits = ", ".join(f"{split} {size:,}" for split, size in (one.splits or {}).items())
    tools = "" if one.tools is None else f"; tools: {', '.join(one.tools) or 'none'}"
    return {
        "env": one.name,
        "provider": "+".join(one.providers),
        "turns": one.max_turns,
        "needs": re.sub(r" \([^)]*\)", "", ", ".join(one.needs)) or "nothing",
        "splits, tools": one.fault or splits + tools,
    }


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


def _opened(found: InstalledEnvironment, spec: RunSpec) -> InstalledEnvironment:
    (name, member), fields = next(iter(spec.env.members.items())), asdict(found)
    try:
        provider = load_provider(env_config(name, member, spec), os.environ)
    except (XpError, EnvFault) as error:
        return InstalledEnvironment(**fields | {"fault": str(error).splitlines()[0]})
    try:
        splits = {split: provider.num_tasks(split) for split in provider.splits()}
        session = provider.open(provider.tasks(next(iter(splits)), [0])[0])
        tools = [tool.name for tool in session.tools()]
        session.close()
        return InstalledEnvironment(**fields | {"splits": splits, "tools": tools})
    except (XpError, EnvFault) as error:
        return InstalledEnvironment(**fields | {"fault": str(error).splitlines()[0]})
    finally:
        with suppress(Exception):
            provider.close()
