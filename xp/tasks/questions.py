"""Requests of the preparation to an environment, and messages if it does not answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, TypeVar

from xp.envs.base import (
    Describer,
    EnvFault,
    EnvUnavailable,
    Lister,
    Message,
    Provider,
    Task,
    ToolSpec,
)
from xp.envs.messages import chat_messages
from xp.envs.pictures import unread
from xp.envs.retry import BASE_S, CAP_S
from xp.envs.rows import messages_of
from xp.episode.prompt import opening_messages, prompt_keys, tool_schemas
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.text import valid_value
from xp.spec.dialect import Dialect
from xp.tasks.config import MemberConfig
from xp.tasks.entries import TaskEntry

Answer = TypeVar("Answer")

QUESTION_S: Final = 30.0
"""Seconds within which a request is tried again that the whole preparation needs. A provider that has waited out an
outage itself, until its deadline, does not wait again."""
KNOWN_S: Final = 75.0
"""The same for an environment whose tasks are prepared: its address is right, so a server that refuses connections is
being deployed again, which takes a minute."""
MOST_LISTED = 20_000
"""Largest number of a split's tasks that are listed to select a share by content; a larger split's share is by index,
unless its tasks are rows that are graded here."""


def ask(member: MemberConfig, question: Callable[[], Answer], *, is_known: bool = False) -> Answer:
    """Sends a request that the whole preparation needs; raises XpError if the environment does not answer.

    Args:
        member: the environment.
        question: sends the request.
        is_known: whether its tasks were prepared, so that its address is right.
    """
    from tenacity import (
        Retrying,
        retry_if_exception_type,
        stop_after_attempt,
        stop_after_delay,
        wait_exponential_jitter,
    )

    again = Retrying(
        retry=retry_if_exception_type(EnvUnavailable),
        stop=stop_after_delay(KNOWN_S)
        if is_known
        else stop_after_delay(QUESTION_S) | stop_after_attempt(3),
        wait=wait_exponential_jitter(BASE_S, CAP_S, jitter=BASE_S),
        reraise=True,
    )
    try:
        return again(question)
    except (EnvFault, OSError) as error:
        raise unreachable(member, reason(error)) from error


class ProviderSplits:
    """See xp.tasks.selection.Splits; requests the facts from a provider.

    Args:
        member: the environment, for messages.
        provider: its provider.
    """

    def __init__(self, member: MemberConfig, provider: Provider) -> None:
        self._member = member
        self._provider = provider

    def names(self) -> Sequence[str]:
        return ask(self._member, self._provider.splits)

    def num_tasks(self, split: str) -> int:
        return ask(self._member, partial(self._provider.num_tasks, split))

    def contents(self, split: str) -> Sequence[str] | None:
        provider = self._provider
        size = self.num_tasks(split)
        is_graded = self._member.env.provider == "local"
        if not isinstance(provider, Lister) or (size > MOST_LISTED and not is_graded):
            return None
        tasks = ask(self._member, partial(provider.listed, split))
        if tasks is None:
            return None
        if len(tasks) != size:
            raise unreachable(
                self._member, f"it counts {size} tasks in {split}, and lists {len(tasks)}"
            )
        if is_graded:  # A row's prompt is all that a model reads of it.
            prompts = [prompt_keys(messages_of(task.spec, unread))[0] for task in tasks]
            if len(set(prompts)) > 1:
                return prompts
        return [hash_task(task) for task in tasks]


def unreachable(member: MemberConfig, why: str) -> XpError:
    env = member.env
    return XpError(
        f"environment {env.name} ({env.target or env.serve or env.provider}) does not answer as it should: {why}\n"
        "check that its server runs and that the address is right; fetched tasks are kept for the next start",
        ExitCode.ENVIRONMENT,
    )


def reason(error: Exception) -> str:
    text = "".join(char if char.isprintable() else " " for char in str(error))
    return f"{type(error).__name__}: {' '.join(text.split())[:300]}"


def hash_task(task: Task) -> str:
    """Hash of the environment's description of a task, or of the index if there is no description."""
    return digest_of(task.spec or {"split": task.split, "index": task.index})


def described(provider: Provider, task: Task) -> tuple[list[Message], tuple[ToolSpec, ...]]:
    """Prompt and tools of a task, from a short session if the provider needs one."""
    if isinstance(provider, Describer):
        return provider.describe(task)
    with closing(provider.open(task)) as session:
        return session.prompt(), session.tools()


def entry_of(
    task_hash: str,
    prompt: Sequence[Message],
    tools: tuple[ToolSpec, ...],
    member: MemberConfig,
) -> TaskEntry:
    """Stored form of a task; raises ValueError if it has no prompt, or one that no chat template reads."""
    messages = opening_messages(member.env.system_prompt, prompt, tools)
    if not messages:
        raise ValueError("the environment has no prompt for this task")
    chat_messages(messages)
    # A chat template with tools would instruct the model to write calls in the template's own format.
    shown = () if member.env.dialect is Dialect.ACTION else tools
    schemas = json.dumps(valid_value(tool_schemas(shown)), sort_keys=True, ensure_ascii=True)
    return TaskEntry(task_hash, tuple(messages), schemas)
