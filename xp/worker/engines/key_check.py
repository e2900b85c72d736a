"""vLLM's and SGLang's HTTP servers on 127.0.0.1, for requests with the run's key only. They end with their parent.

    python -m xp.worker.engines.key_check vllm serve MODEL --middleware xp.worker.engines.key_check.EngineKeyCheck ...
    python -m xp.worker.engines.key_check sglang --model-path MODEL ...

vLLM's own key guards `/v1` only (0.22 to 0.31), while VLLM_SERVER_DEV_MODE adds paths that replace the weights.
SGLang's own `--api-key` would be visible in the process list and in the server's log (0.5.15).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Collection, Sequence
from typing import Final

from xp.lib import loopback_binding, private_ray, processes
from xp.lib.asgi_key import App, KeyCheck

KEY: Final = "XP_ENGINE_KEY"
"""Variable with the key; a process of the run's own Ray derives it from Ray's token instead."""
OPEN: Final = ("/health",)
"""Paths that need no key: the trainers' own clients request them without one, and the answers have no content."""


class EngineKeyCheck(KeyCheck):
    """ASGI middleware of an engine's server, with the key of this process; vLLM's `--middleware` takes it by name."""

    def __init__(self, app: App, open_paths: Collection[str] = OPEN) -> None:
        super().__init__(app, engine_key(), open_paths=open_paths)


def engine_key() -> str:
    """Key of the run's engines; raises RuntimeError in a process that has none."""
    key = os.environ.get(KEY) or private_ray.engine_key()
    if key is None:
        raise RuntimeError(
            "this process has no key of engines: they would be open to other users of the machine"
        )
    return key


def headers() -> dict[str, str]:
    """Headers of a request to the run's engines."""
    return {"Authorization": f"Bearer {engine_key()}"}


def main(engine: str, arguments: Sequence[str]) -> None:
    """Serves until the process is stopped.

    Args:
        engine: `vllm` or `sglang`.
        arguments: those of `vllm`, or of `sglang.launch_server`.
    """
    if engine == "vllm":
        sys.argv[1:] = arguments
        runpy.run_module("vllm.entrypoints.cli.main", run_name="__main__", alter_sys=True)
        return
    from sglang.srt.entrypoints import http_server
    from sglang.srt.server_args import prepare_server_args

    http_server.app.add_middleware(EngineKeyCheck)
    http_server.launch_server(prepare_server_args(list(arguments)))


if __name__ == "__main__":
    loopback_binding.bind_to_loopback()
    processes.end_with_parent()
    main(sys.argv[1], sys.argv[2:])
