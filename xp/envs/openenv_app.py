"""Makes the served app, in the server's process, from an OpenEnv environment class or its author's own app."""

from __future__ import annotations

import inspect
import typing
from typing import Any, Final

from xp.envs.served_rewards import spell_out

MAX_SESSIONS: Final = 1024
"""Largest number of sessions of a class that supports several; the client's limit is env.limits.max_sessions."""


def app_of(found: Any) -> Any:
    """The ASGI app of `module:name`: an app unchanged, or made from a class of `openenv.core.env_server.Environment`.

    Raises:
        TypeError: it is neither, or its type parameters do not give its models.
    """
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import WSObservationResponse
    from starlette.applications import Starlette

    spell_out(WSObservationResponse, "data")
    if isinstance(found, Starlette):
        return found
    if not inspect.isclass(found) or not issubclass(found, Environment):
        raise TypeError(f"{found!r} is neither an app nor a class of openenv's Environment")
    environment: Any = found
    action, observation = _models(environment)
    sessions = MAX_SESSIONS if environment.SUPPORTS_CONCURRENT_SESSIONS else 1
    return create_fastapi_app(environment, action, observation, max_concurrent_envs=sessions)


def _models(environment: type) -> tuple[type, type]:
    """Action and observation of `class Mine(Environment[Action, Observation, State])`, or of its `step`."""
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    for base in environment.__mro__:
        for origin in getattr(base, "__orig_bases__", ()):
            given = [each for each in typing.get_args(origin) if inspect.isclass(each)]
            if len(given) >= 2:
                return given[0], given[1]
    if issubclass(environment, MCPEnvironment):
        return CallToolAction, CallToolObservation
    hints = typing.get_type_hints(environment.step)  # type: ignore[attr-defined]
    action, observation = hints.get("action"), hints.get("return")
    if inspect.isclass(action) and inspect.isclass(observation):
        return action, observation
    raise TypeError(
        f"{environment.__name__} names no models: derive it from Environment[YourAction, YourObservation, State]"
    )
