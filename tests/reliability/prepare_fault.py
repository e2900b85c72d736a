"""The prepare stage with a fault at the n-th visit of a point, POINT:ACTION[:N]; none where it is `nowhere`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import xp.tasks.build
import xp.tasks.fetch
import xp.tasks.prepare
import xp.tasks.shards
from xp.tasks.manifest import TABLE
from xp.tasks.shards import ShardEntry

POINTS: Final = (
    "start",
    "locked",
    "planned",
    "task",
    "shard-temporary",
    "shard",
    "merge",
    "before-commit",
    "committed",
)


class InjectedFault(Exception):
    """Simulated bug."""


class Fault:
    def __init__(self, text: str) -> None:
        self._point, self._action, nth = [*text.split(":"), "1"][:3]
        self._nth = int(nth)
        self._visits = count(1)

    def at(self, point: str) -> None:
        if point == self._point and next(self._visits) == self._nth:
            if self._action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise InjectedFault(point)

    def before(self, owner: Any, name: str, point: str) -> None:
        act = getattr(owner, name)
        setattr(
            owner,
            name,
            lambda *args: (self.at(point), act(*args))[1],
        )

    def after(
        self, owner: Any, name: str, point: str, when: Callable[..., bool] = lambda *_: True
    ) -> None:
        act = getattr(owner, name)

        def acted(*args: Any) -> Any:
            result = act(*args)
            if when(*args):
                self.at(point)
            return result

        setattr(owner, name, acted)

    def while_replacing(self, module: Any, is_file: Callable[[Path], bool], point: str) -> None:
        replacing = module.replacing

        @contextmanager
        def replaced(path: Path) -> Iterator[Path]:
            with replacing(path) as temporary:
                yield temporary
                if is_file(path):
                    self.at(point)

        module.replacing = replaced


def main(fault: Fault, config: str) -> int:
    fault.before(xp.tasks.prepare, "prove", "start")
    fault.before(xp.tasks.prepare, "_build", "locked")
    fault.before(xp.tasks.fetch.Fetcher, "run", "planned")
    fault.after(
        xp.tasks.fetch.Fetcher, "_take", "task", lambda *args: isinstance(args[-1], ShardEntry)
    )
    fault.while_replacing(
        xp.tasks.shards, lambda path: path.name.startswith("shard-"), "shard-temporary"
    )
    fault.after(xp.tasks.shards.WorkDirectory, "write", "shard")
    fault.while_replacing(xp.tasks.build, lambda path: path.name == TABLE, "merge")
    fault.before(xp.tasks.build, "publish", "before-commit")
    fault.after(xp.tasks.build, "sync_directory", "committed", lambda path: path.name == "tasks")
    return xp.tasks.prepare.main([config])
