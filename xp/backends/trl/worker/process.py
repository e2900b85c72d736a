"""A stage's process: its threads, the libraries' output, its rank, and what its rollouts use."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from logging import getLogger
from typing import TYPE_CHECKING, Final, TypeVar

from xp.lib import loopback_binding
from xp.worker.nodes import Nodes

if TYPE_CHECKING:
    from xp.backends.trl.worker.config import TRLTrainConfig
    from xp.backends.trl.worker.steps import TRLStepLog
    from xp.episode.mixture import EnvironmentMixture
    from xp.episode.tokens import ChatTokens
    from xp.episode.upload import Recorder

RELEASE_S: Final = 1.0
"""Seconds for another thread to finish work of microseconds."""


def quiet_trainer(num_threads: int) -> None:
    """Sets torch's threads; disables the libraries' progress bars, and warnings that a user of xp cannot act on."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(num_threads)
    logging.disable_progress_bar()
    # TRL 1.16.0 uses the old name of activation checkpointing with transformers 5.23.0.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    # TRL would write the whole prompts of void episodes; the environment's fault is logged by the episode.
    grpo = getLogger("trl.trainer.grpo_trainer")
    grpo.addFilter(lambda record: "All reward functions returned None" not in record.getMessage())


def quiet_rank() -> None:
    """Silences output on every rank but the first; errors are printed by all."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def bind_on_one_machine() -> None:
    """Binds a stage of one machine to 127.0.0.1; a stage of several must be reachable from the others."""
    if Nodes.here(os.environ) is None:
        loopback_binding.bind_to_loopback()


def join_group(ranks: Ranks, *, use_cpu: bool, timeout_s: float) -> None:
    """Makes the process group of several ranks, before the trainer would make it with another timeout."""
    if ranks.count > 1:
        from accelerate import PartialState

        PartialState(cpu=use_cpu, timeout=timedelta(seconds=timeout_s))


def leave_group(ranks: Ranks) -> None:
    """Ends the process group when no rank uses it any more."""
    if ranks.count == 1:
        return
    import torch.distributed

    ranks.wait()
    # Gloo's thread releases the last collective's tensors with the GIL. Destroying the group at the same time, with
    # the GIL held, waits for that thread for ever (seen in torch 2.13: ~ProcessGroupGloo joins its runLoop).
    time.sleep(RELEASE_S)
    torch.distributed.destroy_process_group()


T = TypeVar("T")


class Ranks:
    """Rank of this training process, and number of all processes; without torchrun, the only one."""

    def __init__(self) -> None:
        self.number = int(os.environ.get("RANK", "0"))
        self.count = int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def is_main(self) -> bool:
        return self.number == 0

    @property
    def suffix(self) -> str:
        """Part of a file's name, for a file of each rank."""
        if self.is_main:
            return ""
        return f".rank_{self.number}"

    def gather(self, values: Sequence[T]) -> list[list[T]]:
        """Values of all ranks, in order of rank; all ranks must call it."""
        if self.count == 1:
            return [list(values)]
        import torch.distributed

        shares: list[list[T]] = [[] for _ in range(self.count)]
        torch.distributed.all_gather_object(shares, list(values))
        return shares

    def wait(self) -> None:
        """Waits until all ranks have called it."""
        self.gather([])


@dataclass(frozen=True)
class TrainingProcess:
    """Objects that all rollouts of one training process share."""

    config: TRLTrainConfig
    chat: ChatTokens
    """The policy's tokenizer."""
    mix: EnvironmentMixture
    log: TRLStepLog
    """Receives the results of a step's episodes; raises if too many are void."""
    recorder: Recorder
    """Receives every trajectory of this process."""
    ranks: Ranks
    """The training processes; each plays its share of a step."""
