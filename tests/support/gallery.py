"""Environments that show pictures, for episodes of two turns under every trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.fake_session import RULES, FakeSession, TakingSession
from tests.support.scripts import ROW
from tests.support.sections import replace as replaced
from tests.support.tiny_vision import IMAGES, message, picture
from xp.envs.base import NEW_PROMPT, TakenResult, Task, ToolResult
from xp.envs.picture_store import PictureStore
from xp.episode.episode import Episode
from xp.tasks.row import TaskRow

RULES_WITH_PICTURES = replaced(RULES, provider="local", images=IMAGES)


class Gallery:
    """Environments that show a picture before a turn, or none.

    Args:
        store: of the pictures.
        shown: for each task, names of the pictures of the prompt and of the reply to the first turn; empty: none.
        rewrites: whether the reply is a prompt of its own, so that an episode has two rows.
        alternates: whether rewards are 0 and 1 by turns; else the number of the task.
    """

    def __init__(
        self,
        store: PictureStore,
        shown: Sequence[tuple[str, str]],
        *,
        rewrites: bool = False,
        alternates: bool = False,
    ) -> None:
        self._store = store
        self._rewrites = rewrites
        self._shown = shown
        self._alternates = alternates
        self._num_episodes = 0

    def rows(self) -> list[TaskRow]:
        return [
            replace(
                ROW,
                task_id=f"fake/train/{index}",
                index=index,
                messages=(message("user", *self._pictures(prompt), "How many?"),),
            )
            for index, (prompt, _) in enumerate(self._shown)
        ]

    def episode(self, row: Any) -> Episode:
        _, name = self._shown[row.index]
        num_answers = 0
        reward = float(row.index)
        if self._alternates:
            reward = float(self._num_episodes % 2)
        self._num_episodes += 1

        def answer(_: Any) -> ToolResult:
            nonlocal num_answers
            num_answers += 1
            if num_answers == 2:
                return ToolResult("done", reward, finished=True)
            reply = message("user", *self._pictures(name), " And now?")
            if self._rewrites:
                return TakenResult("", messages=(reply,), follows=NEW_PROMPT)
            pictures = tuple(reply.get("pictures", ()))
            return ToolResult(reply["content"], awaits_reply=True, pictures=pictures)

        def no_tool(*_: Any) -> ToolResult:
            return ToolResult("")

        task = Task(row.env, row.split, row.index)
        if not self._rewrites:
            return Episode(task, lambda: FakeSession(no_tool, answer), RULES_WITH_PICTURES)
        rules = replaced(RULES_WITH_PICTURES, provider="harness")
        session = TakingSession(no_tool)
        session.take = answer  # type: ignore[method-assign]
        return Episode(task, lambda: session, rules)

    def scores_groups(self, env: str) -> bool:
        del env
        return False

    def max_sessions(self) -> int:
        return 64

    def _pictures(self, name: str) -> list[Any]:
        return [picture(self._store, name)] if name else []
