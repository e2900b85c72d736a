"""Lists and removes sandboxes by label, by each cloud's own client; Harbor has no call for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

MANAGED: Final = {"harbor.managed": "true"}
"""Label of Harbor's sandboxes at Daytona and Modal."""
NAME: Final = "harbor.session_id"

LATE: Final = (
    "TimeoutError",
    "ExecTimeoutError",
    "TimeoutException",
    "DaytonaProcessExecutionTimeoutError",
)
"""Classes of Python, Modal, E2B and Daytona for a command that exceeds its own time."""

Removal = Callable[[], Awaitable[Any]]


async def label(kind: str, sandbox: Any) -> None:
    """Labels a sandbox where Harbor's class does not."""
    if kind == "runloop":
        await sandbox._client.api.devboxes.update(
            sandbox._devbox.id, metadata={NAME: sandbox.session_id}
        )


def listed(kind: str) -> AsyncIterator[tuple[str, Removal]]:
    """Name of each of Harbor's sandboxes that runs, and what removes it."""
    return {"daytona": _daytona, "modal": _modal, "e2b": _e2b, "runloop": _runloop}[kind]()


def is_gone(error: Exception) -> bool:
    """Returns whether a client says that there is no such sandbox; each has a class of its own for it."""
    return "NotFound" in type(error).__name__


def is_late(error: Exception) -> bool:
    """Returns whether a client says that a command exceeded its own time."""
    return type(error).__name__ in LATE


async def _daytona() -> AsyncIterator[tuple[str, Removal]]:
    from daytona import AsyncDaytona, ListSandboxesQuery

    async with AsyncDaytona() as client:
        async for sandbox in client.list(ListSandboxesQuery(labels=MANAGED)):
            yield sandbox.labels.get(NAME, ""), sandbox.delete


async def _modal() -> AsyncIterator[tuple[str, Removal]]:
    from modal import App, Sandbox

    app = await App.lookup.aio("__harbor__", create_if_missing=True)
    async for sandbox in Sandbox.list.aio(app_id=app.app_id, tags=MANAGED):
        tags = await sandbox.get_tags.aio()
        yield tags.get(NAME, ""), sandbox.terminate.aio


async def _e2b() -> AsyncIterator[tuple[str, Removal]]:
    from e2b import AsyncSandbox

    pages = AsyncSandbox.list()
    while pages.has_next:
        for sandbox in await pages.next_items():
            name = (sandbox.metadata or {}).get("session_id", "")
            yield name, _killing(AsyncSandbox, sandbox.sandbox_id)


def _killing(client: Any, sandbox_id: str) -> Removal:
    return lambda: client.kill(sandbox_id)


async def _runloop() -> AsyncIterator[tuple[str, Removal]]:
    from runloop_api_client import AsyncRunloop

    async with AsyncRunloop() as client:
        async for devbox in client.devboxes.list(status="running"):
            name = (devbox.metadata or {}).get(NAME, "")
            yield name, _shutting(client, devbox.id)


def _shutting(client: Any, devbox_id: str) -> Removal:
    return lambda: client.devboxes.shutdown(devbox_id)
