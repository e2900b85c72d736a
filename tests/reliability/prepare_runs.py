"""The prepare stage as its own process, as a launcher starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.prepare_fault import Fault, main
from tests.support.child import Fork
from tests.support.fake_provider import FakeWorld
from tests.support.sections import replace
from xp.lib.atomic import write_atomically
from xp.tasks.config import PrepareConfig
from xp.tasks.request import request_key


@dataclass(frozen=True)
class Runs:
    """Starts of one request in one outputs root."""

    world: FakeWorld
    config: PrepareConfig

    @property
    def root(self) -> Path:
        return self.world.root

    @property
    def path(self) -> Path:
        return self.root / "tasks" / request_key(self.config)

    def start(self, fault: str = "nowhere:kill", first: Callable[[], None] = lambda: None) -> Fork:
        write_atomically(self.root / "config.json", self.config.to_json())

        def program() -> int:
            first()
            return main(Fault(fault), "config.json")

        return Fork(program, self.root)

    def finish(
        self, fault: str = "nowhere:kill", first: Callable[[], None] = lambda: None
    ) -> tuple[int, str]:
        """Exit code and what was said on both streams."""
        done = self.start(fault, first).end()
        return done.returncode, done.stdout + done.stderr

    def files(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.iterdir()}

    def leftovers(self) -> list[str]:
        """Everything in the store that is neither the set nor its lock."""
        names = (path.name for path in (self.root / "tasks").iterdir())
        return sorted(
            name for name in names if name not in (self.path.name, f".{self.path.name}.lock")
        )


def new_runs(root: Path, **behaviour: object) -> Runs:
    """A small world in `root`, whose request is the same wherever it lies."""
    root.mkdir(parents=True, exist_ok=True)
    world = FakeWorld(
        root, **{"splits": {"train": 300, "test": 40}, "latency_s": 0.01, **behaviour}
    )
    member = world.member()
    member = replace(member, env=replace(member.env, target="behaviour.json"))
    return Runs(world, replace(world.config(concurrency=8), members={"fake": member}))
