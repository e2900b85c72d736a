"""A stage program of Slime's on a CPU: `python -m tests.engines.slime_on_cpu.stage MODULE CONFIG`.

Slime's train.py, its Ray actors, router, rollout, conversion of samples, losses, export, and its update of weights over
the disk; SGLang's real server, which Slime's own engine starts; Megatron's GPT model, optimizer, scheduler and
checkpoints. Not real: GPUs (numbers that Ray is told), and what tools.parity.slime_rehearsal names.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.slime_engine import ON_CPU
from tools.parity.slime_rehearsal.megatron import LOCAL, name_norms, packed_attention, without_cuda
from xp.backends.slime.worker import processes
from xp.backends.slime.worker.config import SlimeCommand, WorkerConfig
from xp.lib.loopback import free_port
from xp.lib.patching import after_import
from xp.worker.program import run_stage

OWN = (
    *ON_CPU,
    # 64 episodes of the embedded default.
    *("--sglang-max-total-tokens", "70000", "--sglang-sleep-on-idle"),
)
"""Flags over those that xp renders; the last of two of one name counts."""
TRAINING = ("--update-weight-transport", "disk", "--distributed-backend", "gloo")
"""More of them, where something is trained."""


def prepare_process() -> None:
    """Set-up hook of each of Ray's workers."""
    processes.with_key()
    after_import("slime.backends.megatron_utils.actor", _train_on_the_cpu)


def _train_on_the_cpu(module: ModuleType) -> None:
    import numpy
    import torch
    from slime.backends.megatron_utils import initialize

    without_cuda()
    packed_attention()
    name_norms()
    torch._dynamo.config.disable = True
    numpy.__version__ = "1.26.4"  # Slime's assertion; nothing here differs
    initialize._build_tokenizer = lambda _: None
    actor = module.MegatronTrainRayActor  # type: ignore[attr-defined]
    native = actor.init

    def init(
        self: Any, args: Any, role: str, with_ref: bool = False, with_opd_teacher: bool = False
    ) -> Any:
        for name, value in LOCAL.items():
            setattr(args, name, value)
        # Megatron's dummy tokens are part of its softmax.
        args.padded_vocab_size = args.vocab_size
        return native(self, args, role, with_ref, with_opd_teacher)

    actor.init = init


def on_cpu(command: SlimeCommand, worker: WorkerConfig) -> SlimeCommand:
    """The same command, for engines on the CPU; those of a training take weights over the disk."""
    weights = Path(worker.root, worker.stage_dir, "weights")
    training = (
        (*TRAINING, "--update-weight-disk-dir", str(weights)) if worker.stage == "train" else ()
    )
    return replace(command, flags=(*command.flags, *OWN, *training))


def main(program: str, config: str) -> int:
    """Run a stage program with these replacements; returns its exit code."""
    os.environ |= {"SGLANG_GRPC_PORT": str(free_port()), "SGLANG_HEALTH_CHECK_TIMEOUT": "60"}
    processes.setup = lambda _: prepare_process  # type: ignore[assignment]
    processes.name_of = lambda _: f"{__spec__.name}.{prepare_process.__name__}"  # type: ignore[assignment]
    module: Any = import_module(program)
    native = module.run_train
    module.run_train = lambda command, worker: native(on_cpu(command, worker), worker)
    return run_stage(module.main, [config])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
