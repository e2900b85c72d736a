"""Small OpenEnv environments with the properties that break clients: slowness, faults, one session, MCP tools."""

from __future__ import annotations

import random
import time
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.utilities.types import Image
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Action, Observation, State

TASKS_VERSION = "1"


class Add(Action):
    """Add to the count."""

    amount: int
    wait_s: float = 0.0


class Count(Observation):
    count: int = 0


class Counter(Environment[Add, Count, State]):
    """Counts from the reset's seed; 13 is a fault of its own, 100 the end, 66 a reward that is no number."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, start: int = 0, **_: Any
    ) -> Count:
        del episode_id
        self.count = start + (seed or 0)
        return Count(count=self.count, done=start >= 100)

    def step(self, action: Add, timeout_s: float | None = None, **_: Any) -> Count:
        del timeout_s
        time.sleep(action.wait_s)
        if action.amount == 13:
            raise RuntimeError("thirteen")
        self.count += action.amount
        reward = float("nan") if action.amount == 66 else float(action.amount)
        return Count(count=self.count, reward=reward, done=self.count >= 100)

    @property
    def state(self) -> State:
        return State(step_count=self.count)


class Unseeded(Counter):
    """Begins at a number by chance, whatever the reset's seed."""

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, start: int = 0, **_: Any
    ) -> Count:
        del seed, start
        return super().reset(random.SystemRandom().getrandbits(64), episode_id)


class Lonely(Counter):
    """One session at a time."""

    SUPPORTS_CONCURRENT_SESSIONS = False


class Pay(Action):
    """Pay."""

    reward: str


class Receipt(Observation):
    loss: float = float("nan")


class Payer(Environment[Pay, Receipt, State]):
    """Pays what the step says, which ends the episode; a reset has no reward yet."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Receipt:
        del seed, episode_id
        return Receipt(reward=float("nan"))

    def step(self, action: Pay, timeout_s: float | None = None, **_: Any) -> Receipt:
        del timeout_s
        return Receipt(reward=float(action.reward), done=True)

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    """Acts by MCP tools; a failed call costs half a point, and a fifth one is the end."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")

        @server.tool
        def say(text: str) -> str:
            """Say it back."""
            return text

        @server.tool
        def fail() -> str:
            """Raise."""
            raise ToolError("no such file: x")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add."""
            return a + b

        @server.tool
        def look() -> Image:
            """A picture."""
            return Image(data=b"png", format="png")

        super().__init__(server)
        self.num_faults = 0

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> Observation:
        del seed, episode_id
        return Observation(done=False)

    async def step_async(
        self, action: Action, timeout_s: float | None = None, **more: Any
    ) -> Observation:
        seen = await super().step_async(action, timeout_s=timeout_s, **more)
        is_fault = getattr(seen, "error", None) is not None
        self.num_faults += is_fault
        seen.reward = -0.5 if is_fault else 0.25
        seen.done = self.num_faults >= 5
        return seen

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        del timeout_s
        raise ValueError(f"unknown action {type(action).__name__}")

    @property
    def state(self) -> State:
        return State()


async def own_results(environment: Any, calls: Any) -> list[tuple[str, float | None, bool, bool]]:
    """Text, reward, end and whether a call failed, of calls of an environment's MCP tools without any server."""
    environment.reset(seed=0)
    results = []
    for name, arguments in calls:
        seen = await environment.step_async(CallToolAction(tool_name=name, arguments=arguments))
        error = getattr(seen, "error", None)
        result = getattr(seen, "result", None)
        if error:
            text = error.message
        elif result:
            text = "\n".join(block.text for block in result.content)
        else:
            text = "{}"
        results.append((text, seen.reward, seen.done, error is not None))
    return results
