"""Servers of SkyRL's that die or hang at planned moments, for tests/engines/test_skyrl_lost.py.

python -m tests.engines.skyrl_lost STAGE_MODULE CONFIG FAULTS. FAULTS is JSON, number of the rollout -> `kill` (all
processes of the server), `core` (the engine's own) or `hang` (that one is stopped) in it, `gone` after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from xp.backends.skyrl.worker.rehearsal import stand_ins
from xp.security.after_import import after_import
from xp.worker.program import run_stage

FAULTS = "XP_TEST_FAULTS"
AT_TURN = 2
"""Turn of the rollout, over all episodes, at which a fault of it comes."""
PATIENCE_S = 30.0


def prepare_process() -> None:
    """Set-up hook of each of Ray's workers, with the faults."""
    stand_ins.prepare_process()
    after_import("xp.backends.skyrl.worker.kept_servers", _break_servers)
    after_import("xp.backends.skyrl.worker.generator", _break_turns)
    after_import("xp.backends.skyrl.worker.trainer", _break_training)


_rollout = {"number": 0, "turns": 0}
_kept: list[Any] = []


def _lose(fault: str) -> None:
    import psutil

    (server,) = _kept[0]._started[0]
    for pid, _ in server.processes:
        process = psutil.Process(pid)
        is_core = "EngineCore" in " ".join([process.name(), *process.cmdline()])
        if fault in ("kill", "gone") or (fault == "core" and is_core):
            process.kill()
        elif fault == "hang" and is_core:
            process.send_signal(signal.SIGSTOP)
    print(f"test: {fault} {server}", file=sys.stderr, flush=True)


def _break_servers(module: ModuleType) -> None:
    module.PATIENCE_S = PATIENCE_S  # type: ignore[attr-defined]
    native = module.KeptServers.played

    async def played(self: Any, batch: Any) -> Any:
        _kept[:] = [self]
        _rollout.update(number=_rollout["number"] + 1, turns=0)
        return await native(self, batch)

    module.KeptServers.played = played


def _break_training(module: ModuleType) -> None:
    """Colocated engines sleep then."""
    native, faults = module.XpTrainer.fwd_logprobs_values_reward, json.loads(os.environ[FAULTS])

    def fwd_logprobs_values_reward(self: Any, *args: Any) -> Any:
        if faults.get(str(_rollout["number"])) == "gone":
            _lose("gone")
        return native(self, *args)

    module.XpTrainer.fwd_logprobs_values_reward = fwd_logprobs_values_reward


def _break_turns(module: ModuleType) -> None:
    native, faults = module.TurnClient.generate, json.loads(os.environ[FAULTS])

    async def generate(self: Any, *args: Any, **more: Any) -> Any:
        _rollout["turns"] += 1
        fault = faults.get(str(_rollout["number"]), "gone")
        if _rollout["turns"] == AT_TURN and fault != "gone":
            _lose(fault)
        return await native(self, *args, **more)

    module.TurnClient.generate = generate


def main(module: str, config: str, faults: str) -> int:
    """Run a stage with these faults; returns its exit code."""
    from xp.backends.skyrl.worker import cluster

    os.environ[FAULTS] = faults
    cluster.REHEARSE = f"{__spec__.name}.{prepare_process.__name__}"  # type: ignore[misc]
    return run_stage(import_module(module).main, [config])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
