"""Sets up a stage's process: its threads, and the libraries' output in the log."""

from __future__ import annotations

import os
import sys
import warnings
from datetime import timedelta

from xp.backends.trl.worker.ranks import Ranks
from xp.security import loopback, stores
from xp.worker.nodes import Nodes


def quiet_trainer(num_threads: int) -> None:
    """Sets torch's threads; disables the libraries' progress bars, and warnings that a user of xp cannot act on."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(num_threads)
    logging.disable_progress_bar()
    # TRL 1.16.0 uses the old name of activation checkpointing with transformers 5.23.0.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)


def quiet_rank() -> None:
    """Silences output on every rank but the first; errors are printed by all."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def stay_here() -> None:
    """Binds a stage of one machine to 127.0.0.1; a stage of several must be reachable from the others."""
    if Nodes.here(os.environ) is None:
        loopback.stay()


def join_group(ranks: Ranks, *, use_cpu: bool, timeout_s: float) -> None:
    """Makes the process group of several ranks with a file, before the trainer would make it with a port.

    Ranks on several machines have no common file and use the main node's port.
    """
    if ranks.count == 1:
        return
    from accelerate import PartialState

    if stores.DIRECTORY not in os.environ:
        PartialState(cpu=use_cpu, timeout=timedelta(seconds=timeout_s))
        return
    PartialState(
        cpu=use_cpu,
        init_method=f"file://{os.environ[stores.DIRECTORY]}/ranks",
        rank=ranks.number,
        world_size=ranks.count,
        timeout=timedelta(seconds=timeout_s),
    )


def leave_group(ranks: Ranks) -> None:
    """Ends the process group when no rank uses it any more."""
    if ranks.count > 1:
        ranks.wait()
        stores.end_groups()
