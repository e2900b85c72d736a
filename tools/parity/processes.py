"""Processes of a trainer in the measure: one a rank, forked from a program that has imported the trainer."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

from tools.parity.found import Found
from xp.errors import XpError


def in_processes(run: Callable[[int], Found], num_ranks: int, scratch: Path) -> Found:
    """Call `run` with each rank, each in a process of its own, and return what the first rank's returned.

    Args:
        run: takes a rank, from 0.
        num_ranks: number of processes.
        scratch: directory for results; each process writes into it.

    Raises:
        XpError: a process failed; the message has the fault of each that did.
    """
    import torch

    file = scratch / "found.pt"

    def process(rank: int) -> None:
        try:
            found = run(rank)
            if rank == 0:
                torch.save(found, file)
        except BaseException as error:
            _fault_of(scratch, rank).write_text(f"{type(error).__name__}: {error}")
            raise

    children = [
        get_context("fork").Process(target=process, args=(rank,)) for rank in range(num_ranks)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    failed = [
        f"rank {rank} ended with {child.exitcode}: {_said(scratch, rank)}"
        for rank, child in enumerate(children)
        if child.exitcode
    ]
    if failed:
        raise XpError("; ".join(failed))
    found: Found = torch.load(file, weights_only=False)
    return found


def _fault_of(scratch: Path, rank: int) -> Path:
    return scratch / f"rank_{rank}.txt"


def _said(scratch: Path, rank: int) -> str:
    file = _fault_of(scratch, rank)
    if file.exists():
        return file.read_text()
    return "it was killed"
