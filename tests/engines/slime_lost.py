"""Engines of Slime's that die or hang at planned moments, and a training that is made up, for test_slime_lost.py.

python -m tests.engines.slime_lost CONFIG FAULTS: xp's train stage, with these in each of Ray's processes. FAULTS is
JSON, rollout id -> `kill` or `hang` in the rollout, `gone` between it and the next weights.

Not real: Megatron. The weights of version n are `other_weights(n)`, which Slime's own update sends by its own way over
the disk. Version 1 is sent before the first rollout, so that rollout id n has version n + 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from tests.engines.test_slime import other_weights
from tests.tiny import tokenizer_and_model
from xp.backends.slime.worker import processes, train
from xp.lib.after_import import after_import
from xp.worker.program import run_stage

FAULTS = "XP_TEST_FAULTS"
TURN_S = 120.0
"""Deadline of a turn."""
AT_TURN = 3
"""Turn of the rollout, over all episodes, at which a fault of it comes."""


def prepare_process() -> None:
    """Set-up hook of each of Ray's workers."""
    processes.with_key()
    after_import("xp.backends.slime.worker.engine", _hurry)
    after_import("xp.backends.slime.worker.rollout", _break_rollout)
    after_import("slime.backends.megatron_utils.actor", _train_nothing)


def _servers() -> list[psutil.Process]:
    """Processes of Slime's engines on this machine, the older ones first; each has its server as its child."""
    raylet = psutil.Process().parent()
    assert raylet is not None
    found = [one for one in raylet.children() if "SGLangEngine" in " ".join(one.cmdline())]
    return sorted(found, key=lambda one: one.create_time())


def _lose(fault: str) -> None:
    engine = _servers()[0]
    for process in engine.children(recursive=True):
        if fault == "kill":
            process.kill()
        elif "scheduler" in " ".join([process.name(), *process.cmdline()]):
            process.send_signal(signal.SIGSTOP)
    print(f"test: {fault} {engine.pid}", file=sys.stderr, flush=True)


def _hurry(module: ModuleType) -> None:
    module.TURN_S = TURN_S  # type: ignore[attr-defined]


def _break_rollout(module: ModuleType) -> None:
    native, faults, turns = module.write_turn, json.loads(os.environ[FAULTS]), {}

    async def write_turn(*args: Any, **more: Any) -> Any:
        from slime.rollout import sample_hooks

        number = str(sample_hooks._current_rollout_id)
        turns[number] = turns.get(number, 0) + 1
        if turns[number] == AT_TURN and faults.get(number, "gone") != "gone":
            # The others' requests are at the engines.
            await asyncio.sleep(1.0)
            _lose(faults[number])
        return await native(*args, **more)

    module.write_turn = write_turn  # type: ignore[attr-defined]


def _train_nothing(module: ModuleType) -> None:
    from slime.ray.train_actor import TrainRayActor
    from slime.utils.misc import load_function

    actor, faults = module.MegatronTrainRayActor, json.loads(os.environ[FAULTS])

    def init(self: Any, args: Any, role: str, with_ref: bool = False, with_opd_teacher: bool = False) -> int:
        TrainRayActor.init(self, args, role, with_ref, with_opd_teacher)
        load_function(args.custom_megatron_init_path)(args)
        sizes = {"dp_size": 1, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        self.train_parallel_config = sizes
        self.weight_updater = MadeUpWeights(args, [], dict, model_name="qwen3", quantization_config=None)
        return 0

    def train(self: Any, rollout_id: int, rollout_data_ref: Any, external_data: Any = None) -> None:
        del rollout_data_ref, external_data
        from slime.observability import logging_utils

        logging_utils.log(
            self.args, {"train/step": rollout_id, "train/loss": 0.0, "train/grad_norm": 0.0}, "train/step"
        )
        if faults.get(str(rollout_id)) == "gone":
            _lose("kill")

    def save_model(self: Any, rollout_id: int, force_sync: bool = False) -> None:
        del self, rollout_id, force_sync

    def clear_memory(self: Any) -> None:
        del self

    class MadeUpWeights(module.UpdateWeightFromDisk):  # type: ignore[misc,name-defined]
        def update_weights(self) -> None:
            self.weight_version += 1
            place = Path(self.args.update_weight_disk_dir, f"weight_v{self.weight_version:06d}")
            for made in (other_weights(self.weight_version), tokenizer_and_model()[0]):
                made.save_pretrained(place)

    actor.init, actor.train, actor.save_model, actor.clear_memory = init, train, save_model, clear_memory
    module.print_memory = lambda *_, **__: None  # type: ignore[attr-defined]


def main(config: str, faults: str) -> int:
    """Run the stage with these faults; returns its exit code."""
    os.environ[FAULTS] = faults
    processes.setup = lambda _: prepare_process  # type: ignore[assignment]
    processes.name_of = lambda _: f"{__spec__.name}.{prepare_process.__name__}"  # type: ignore[assignment]
    return run_stage(train.main, [config])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
