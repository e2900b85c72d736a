"""SkyRL's client of its servers, with a deadline for each answer and errors that name the lost engine."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import aiohttp
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient

from xp.errors import ExitCode, XpError

PROBE: Final = "/is_sleeping"
"""Path that is answered by the engine's own process, not only by the HTTP process in front of it."""
TRANSFER_S: Final = 1800.0
"""Time limit in seconds of a request to load weights, to free memory or to restore it."""
SERVER_FAULTS: Final = 500
"""Lowest HTTP status that is a fault of the server, not of the request."""


class KeptClient(RemoteInferenceClient):  # type: ignore[misc]
    """Adds deadlines to SkyRL's client, and errors that name engines; workers receive it pickled."""

    async def _call_server(self, server_url: str, endpoint: str, *args: Any, **more: Any) -> Any:
        try:
            return await asyncio.wait_for(super()._call_server(server_url, endpoint, *args, **more), TRANSFER_S)
        except (aiohttp.ClientError, TimeoutError) as error:
            if not isinstance(error, TimeoutError) and not is_engines(error):
                raise
            raise XpError(
                f"the engine at {server_url} failed at {endpoint} ({type(error).__name__}: {error}); resume=RUN goes on"
                " from the last checkpoint, and launcher.max_restarts=N does so by itself",
                ExitCode.ENGINE,
            ) from error


def is_engines(error: BaseException) -> bool:
    """Returns whether an engine, or the router of all, failed to answer; False for a request that was refused."""
    if isinstance(error, aiohttp.ClientResponseError):
        return error.status >= SERVER_FAULTS
    # SkyRL's client raises its parser's error if the answer is not JSON.
    return isinstance(error, aiohttp.ClientError | ValueError)


async def answers(client: Any, url: str, timeout_s: float) -> bool:
    """Returns whether an engine answers in this time."""
    session = await client._get_session()
    try:
        async with session.get(url + PROBE, timeout=aiohttp.ClientTimeout(total=timeout_s)) as answer:
            return bool(answer.status == 200)
    except (aiohttp.ClientError, TimeoutError):
        return False
