"""SkyRL's router process: Python starts it with `spawn`, so it must be prepared like Ray's workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

forked: Callable[..., None] | None = None
"""SkyRL's own function, in a process forked from the one that replaced the function."""


def use() -> None:
    """Makes SkyRL start its router in a prepared process."""
    global forked
    from skyrl.backends.skyrl_train.inference_servers import vllm_router

    forked = vllm_router._run_router_with_logging
    vllm_router._run_router_with_logging = run_router


def run_router(router_args: Any, log_file: str | None) -> None:
    """Prepares the process, then calls SkyRL's own function."""
    from xp.backends.skyrl.worker import process

    process.prepare_process()
    from skyrl.backends.skyrl_train.inference_servers import vllm_router

    (forked or vllm_router._run_router_with_logging)(router_args, log_file)
