"""Faults between SkyRL's trainer and its engine, for tests/engines/test_skyrl.py: put in by Ray's set-up hook.

python -m tests.engines.skyrl_faults STAGE_MODULE CONFIG {"4": "stale", "6": "layer"}
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any, cast

from xp.backends.skyrl.worker.rehearsal import cpu_torch
from xp.worker.program import run_stage

FAULTS = "XP_TEST_FAULTS"
"""Variable: what is broken, as JSON."""
LEFT_OUT = "layers.1."
WORKERS = "xp.backends.skyrl.worker.workers"
UNTIED = "untied"
"""A fault of the whole run: SkyRL's FSDP gives the head a weight of its own, which vLLM never takes."""


def prepare_process() -> None:
    """Set-up hook of each of Ray's workers, with the faults."""
    cpu_torch.prepare_process()
    faults = json.loads(os.environ[FAULTS])
    if faults == UNTIED:
        sys.meta_path.insert(0, _Untying())
    elif faults:
        _break_transfers(faults)


class _Untying(MetaPathFinder):
    """Takes xp's repair out of the module of SkyRL's workers; only some of Ray's processes import it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        del path, target
        if name != WORKERS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        loader = cast("Loader", spec.loader)
        execute = loader.exec_module

        def execute_and_untie(module: Any) -> None:
            execute(module)
            module._tying = nullcontext

        loader.exec_module = execute_and_untie  # type: ignore[method-assign]
        return spec


def _break_transfers(faults: dict[str, str]) -> None:
    from xp.backends.skyrl.worker.rehearsal.weights import GlooEngine

    send = GlooEngine.send_weights
    number = 0

    def broken(self: GlooEngine) -> None:
        nonlocal number
        number += 1  # the first transfer is before the first step
        fault = faults.get(str(number))
        source = self._source
        if fault == "stale":
            list(source)
            return
        if fault == "layer":
            self._source = [(name, tensor) for name, tensor in source if LEFT_OUT not in name]
        send(self)
        self._source = source

    GlooEngine.send_weights = broken  # type: ignore[method-assign]


def main(module: str, config: str, faults: str) -> int:
    """Run a stage with these faults; returns its exit code."""
    from xp.backends.skyrl.worker import cluster

    os.environ[FAULTS] = faults
    cluster.REHEARSE = f"{__spec__.name}.{prepare_process.__name__}"  # type: ignore[misc]
    return run_stage(import_module(module).main, [config])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
