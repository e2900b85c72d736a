"""`python -m xp env check`: a report for each environment of a mixture."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from xp.compose import compose, options
from xp.env_check.measure import Measured, measure
from xp.env_check.report import EnvReport, report
from xp.env_check.watch import CLOSE_S, Watch, close_within
from xp.envs.base import EnvFault, Message, Provider
from xp.envs.config import Chat
from xp.envs.load import load_provider
from xp.errors import ExitCode, XpError, nearest
from xp.planning.episode import chat_of, env_config, episode_secrets
from xp.runs.resume import split_off
from xp.secrets.redaction import resolve
from xp.spec import EnvMember, RunSpec

NUM_TASKS: Final = 4
CLASS: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def env_command(words: Sequence[str], seconds: int, *, as_json: bool) -> int:
    """Checks environments; the exit code is ENVIRONMENT if one cannot be trained on or the time was too short.

    Args:
        words: the environment, then `tasks=N`, `tokenizer=DIR` and overrides.
        seconds: time limit.
        as_json: whether the reports are printed as JSON.
    """
    given, rest = split_off(("tasks", "tokenizer"), words)
    if not rest:
        raise XpError("env check: name an environment: env=NAME, a URL, Org/Name or package.module:Class")
    tasks = given.get("tasks", str(NUM_TASKS))
    if not tasks.isdigit() or int(tasks) < 1:
        raise XpError(f"tasks={tasks}: the number of tasks to play must be a whole number from 1 on")
    spec = compose(_as_overrides(rest))
    reports = check(spec, int(tasks), given.get("tokenizer"), seconds)
    if as_json:
        print(json.dumps([one.as_dict() for one in reports], indent=2, ensure_ascii=False))
    else:
        for one in reports:
            show(one)
    return ExitCode.ENVIRONMENT if any(one.faults or one.stopped for one in reports) else ExitCode.OK


def check(spec: RunSpec, num_tasks: int, tokenizer: str | None, seconds: float) -> list[EnvReport]:
    """A report for each member of the mixture, in its order; all together take at most about `seconds`."""
    count = token_counter(tokenizer, chat_of(spec)) if tokenizer else None
    ends = time.monotonic() + seconds
    return [_check_member(spec, name, num_tasks, count, Watch(name, ends)) for name in spec.env.members]


def _check_member(
    spec: RunSpec, name: str, num_tasks: int, count: Callable[[Sequence[Message], str], int] | None, watch: Watch
) -> EnvReport:
    member, group_size = spec.env.members[name], spec.training.group_size
    rules = env_config(name, member, spec)
    # The check must find faults, so no retry on a second session may hide one.
    rules = replace(rules, limits=replace(rules.limits, retries_per_episode=0))
    found, raised = Measured(), list[BaseException]()
    providers: list[Provider] = []

    def work() -> None:
        try:
            watch.doing("connecting")
            providers.append(provider := load_provider(rules, environ := _environ(spec)))
            split = _split(member, provider.splits())
            how = {"num_tasks": num_tasks, "group_size": group_size}
            measure(provider, rules, split, **how, environ=environ, found=found, watch=watch)
        except BaseException as error:  # raised below, on the command's own thread
            raised.append(error)

    try:
        is_whole = watch.run(work)
        # Exceptions after the end of the time come from the close.
        fault = raised[0] if is_whole and raised else None
        found = found.until_now()
        if not is_whole or (watch.is_over and fault is None):
            found.stopped = f"{watch.now}, which had taken {watch.seconds_of_phase:.0f} s"
    finally:
        for provider in providers:
            close_within(provider.close, CLOSE_S)
    if isinstance(fault, EnvFault):
        return EnvReport(name, {}, (f"it does not answer: {type(fault).__name__}: {fault}",), ())
    if fault is not None:
        raise fault
    limit = spec.training.max_prompt_tokens
    return report(rules, found, group_size=group_size, max_prompt_tokens=limit, count_tokens=count)


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


def show(one: EnvReport) -> None:
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


def _environ(spec: RunSpec) -> dict[str, str]:
    """This process's variables, and the declared secrets under their names in a job."""
    secrets = episode_secrets(spec)
    values = resolve(sorted(set(secrets.values())))
    return {**os.environ, **{name: values[variable] for name, variable in secrets.items()}}
