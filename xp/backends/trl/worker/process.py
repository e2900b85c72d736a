"""Set-up of a stage's process: its threads, and the output of libraries that reaches the log."""

from __future__ import annotations

import os
import sys
import time
import warnings
from datetime import timedelta

from xp.backends.trl.worker.ranks import Ranks
from xp.security import loopback
from xp.worker.nodes import Nodes


def quiet_trainer(num_threads: int) -> None:
    """Set torch's threads; leave progress to xp's bar and warnings to what a user of xp can act on."""
    import torch
    from transformers.utils import logging

    torch.set_num_threads(num_threads)
    logging.disable_progress_bar()
    # TRL 1.16.0 asks transformers 5.23.0 by the old name of activation checkpointing.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)


def quiet_rank() -> None:
    """Silences output on every rank but the first; errors are printed by all."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def stay_here() -> None:
    """Keeps a stage of one machine to itself; one of several must be reached from the others."""
    if Nodes.here(os.environ) is None:
        loopback.stay()


STORES = "XP_TRL_STORES"
"""Variable: the directory through which the processes of one stage find each other."""


def join_group(ranks: Ranks, *, use_cpu: bool, timeout_s: float) -> None:
    """Make the process group of several ranks by a file, before the trainer makes it by a port of this machine.

    Ranks on several machines have no file in common: they meet at the main node's port.
    """
    if ranks.count == 1:
        return
    from accelerate import PartialState

    if STORES not in os.environ:
        PartialState(cpu=use_cpu, timeout=timedelta(seconds=timeout_s))
        return
    PartialState(
        cpu=use_cpu,
        init_method=f"file://{os.environ[STORES]}/ranks",
        rank=ranks.number,
        world_size=ranks.count,
        timeout=timedelta(seconds=timeout_s),
    )


RELEASE_S = 1.0
"""For another thread to do what takes it microseconds."""


def leave_group(ranks: Ranks) -> None:
    """End the process group when all ranks are done with it."""
    if ranks.count == 1:
        return
    import torch.distributed

    ranks.wait()
    # Gloo's own thread gives the last collective's tensors back under the GIL. A group that is destroyed meanwhile,
    # with the GIL held, waits for that thread for ever (seen in torch 2.13: ~ProcessGroupGloo joins its runLoop).
    time.sleep(RELEASE_S)
    torch.distributed.destroy_process_group()
