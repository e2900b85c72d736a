"""The environments of tests.envs_under_test on the real openreward server, one process for a whole test session."""

from __future__ import annotations

import functools
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import LOG_VARIABLE
from tests.support.fake_session import RULES
from tests.support.sections import replace
from xp.envs.config import EnvConfig
from xp.envs.local_server import LocalServer
from xp.lib.atomic import private_directory
from xp.spec.env import EnvLimits

COUNTER = "tests.envs_under_test.counter:Counter"
QUIZ = "tests.envs_under_test.counter:Quiz"


@dataclass(frozen=True)
class Running:
    """A server and the file in which its environments note what they do."""

    server: LocalServer
    effects: Path


class Effects:
    """Actions of the environments created after this object.

    The server is shared by the tests of a process, and a session that an earlier test left behind may be torn down in
    the middle of a later one: counted there, it looks like an instance that was torn down twice.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._earlier = {who for _, who in self._lines()}

    def events(self) -> list[tuple[str, str]]:
        """(event, environment instance) in order."""
        return [(event, who) for event, who in self._lines() if who not in self._earlier]

    def count(self, event: str) -> int:
        return sum(name == event for name, _ in self.events())

    def still_open(self) -> set[str]:
        """Instances that were not torn down."""
        events = self.events()
        return {who for name, who in events if name == "init"} - {
            who for name, who in events if name == "teardown"
        }

    def _lines(self) -> list[tuple[str, str]]:
        return [
            (event, who)
            for event, _, who in (
                line.partition(" ") for line in self._log.read_text().splitlines()
            )
        ]

    def most(self, event: str) -> int:
        """The largest number of times that one and the same environment instance did it."""
        return max(Counter(who for name, who in self.events() if name == event).values(), default=0)


@functools.cache
def running(serve: str) -> Running:
    effects = private_directory("test") / "effects"
    effects.touch()
    server = LocalServer(serve, environ={**os.environ, LOG_VARIABLE: str(effects)})
    server.start()
    return Running(server, effects)


def rules(**changes: Any) -> EnvConfig:
    """Rules of an episode against a real server; a test about a deadline sets one that it can wait for."""
    limits = {name: changes.pop(name) for name in list(changes) if name in EnvLimits.model_fields}
    return replace(
        RULES, **{"provider": "openreward", **changes}, limits=replace(RULES.limits, **limits)
    )
