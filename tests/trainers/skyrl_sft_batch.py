"""One batch through SkyRL's SFTTrainer on FSDP workers, without Ray and in float64, in forks of the test's process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.support.forked import run_forked
from tools.parity.found import Found
from tools.parity.processes import in_processes
from xp.backends.skyrl.worker import sft
from xp.backends.skyrl.worker.config import SkyRLSftConfig
from xp.backends.skyrl.worker.rehearsal import cpu_torch
from xp.worker.sft import HELD_OUT_FILE, TRAINING_FILE, SftProgram, read_examples
from xp.worker.tasks import policy_chat


def metrics_of(path: Path, num_ranks: int, root: Path) -> dict[str, Any]:
    """What SkyRL's trainer measures of a stage's files.

    Args:
        path: the stage's config.
        num_ranks: number of processes.
        root: the outputs root.
    """
    target = root / "metrics.json"

    def program() -> int:
        os.chdir(root)
        _run(path, num_ranks, target)
        return 0

    run_forked(program, root / "log.txt")
    metrics: dict[str, Any] = json.loads(target.read_text())
    return metrics


def _run(path: Path, num_ranks: int, target: Path) -> None:
    import torch
    from torch.distributed import device_mesh

    from xp.lib.loopback import free_port

    native = device_mesh.init_device_mesh
    cpu_torch.prepare_process()
    # Modules that other tests of this process have imported hold the function itself.
    for module in [*sys.modules.values()]:
        if vars(module).get("init_device_mesh") is native:
            module.init_device_mesh = device_mesh.init_device_mesh  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    port = free_port()
    in_processes(
        lambda rank: _train(
            path,
            num_ranks,
            target,
            rank,
            port,
        ),
        num_ranks,
        target.parent,
    )


def _train(path: Path, num_ranks: int, target: Path, rank: int, port: int) -> Found:
    from tools.parity.skyrl_dispatch import InProcess, in_precision
    from xp.backends.skyrl.worker.sft_trainer import SftLog, XpSftTrainer

    config = SkyRLSftConfig.from_json(path.read_text())
    cfg = sft.native_config(config, Path.cwd())
    stage = path.parent.absolute()
    files = (stage / TRAINING_FILE, stage / HELD_OUT_FILE)
    chat = policy_chat(config, config.model, stage)
    program = SftProgram(config, stage, chat, *map(read_examples, files))
    sft_cfg = sft.sft_config(cfg, program)
    sft_cfg.ckpt_path = ""  # the workers would write to one place

    class RecordedRun:
        """The metrics that xp takes of SkyRL."""

        start_loss: float | None = None

        def begin(self, update: int, held_out_loss: float) -> None:
            values["before"] = self.start_loss = held_out_loss
            values["first"] = update

        def end(
            self, update: int, loss: float, grad_norm: float, learning_rate: float, *, is_last: bool
        ) -> None:
            values.update(
                update=update,
                loss=loss,
                grad_norm=grad_norm,
                learning_rate=learning_rate,
                is_last=is_last,
            )

        def finish(self, update: int, held_out_loss: float | None) -> None:
            values.update(last=update, after=held_out_loss)

    class Alone(XpSftTrainer):
        def _init_workers(self) -> None:
            with in_precision("float64"):
                self.dispatch = InProcess(
                    cfg, Path(config.model), 1, port, rank=rank, num_ranks=num_ranks
                )

    values: dict[str, Any] = {
        "own": [sft_cfg.async_batch_collation, sft_cfg.fsdp_config.reshard_after_forward]
    }
    log: Any = SftLog(RecordedRun(), 1)  # type: ignore[arg-type]
    trainer = Alone(sft_cfg, cfg, log, config.spec.model)
    trainer.setup()
    trainer.train()
    trainer.shutdown()
    if rank == 0:
        target.write_text(json.dumps(values))
    return Found([], [], [], [], {}, [])
