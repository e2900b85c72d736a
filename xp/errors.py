"""One error type for users and one table of exit codes, shared by every program of xp (docs/exit-codes.md)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of xp's processes. Stage programs use the same table."""

    OK = 0
    INTERNAL = 1
    """A bug in xp: the only case that prints a traceback by default."""
    CONFIG = 2
    """The configuration or the command line is wrong."""
    PLAN = 3
    """The configuration is legal, but the chosen backend, hardware or launcher cannot do it."""
    SECRET = 4
    """A declared secret does not resolve."""
    RUN_DIR = 5
    """The run directory exists, is missing or cannot be resumed."""
    TASKS = 6
    """The task set is missing, partial, stale or belongs to another spec."""
    ENVIRONMENT = 7
    """The environment cannot be reached or breaks the protocol."""
    UNHEALTHY = 8
    """More episodes than `training.max_void_fraction` were void: the environment is failing."""
    STAGE_FAILED = 9
    """A stage's program failed; its log has the reason."""
    MISSING_OUTPUT = 10
    """A stage exited 0 without writing all its declared outputs."""
    RUNTIME = 11
    """A package, accelerator or program that the job needs is not on this machine."""
    DIVERGED = 12
    """A loss or a gradient was not finite (`training.on_nonfinite`), or the engine's weights differ from the trainer's
    (`training.max_logprob_gap`)."""
    ENGINE = 13
    """The inference engine, or with Ray another process of the trainer, ended or hung."""
    SYMPTOM = 14
    """A training showed a symptom, and `training.on_symptom` is `stop`."""
    LIMIT = 15
    """A training reached `training.max_hours` or `training.budget_usd`; it ended after a checkpoint. Or its sandboxes in
    a cloud have cost `env.options.cloud.budget`."""
    NOT_TRAINED = 16
    """A training made fewer updates than requested, or its model is the one that it began with."""
    FLAT = 21
    """`runs diagnose`: nothing was learned, and no symptom is of severity broken."""
    WORSE = 22
    """`runs diagnose`: the trained model is worse than the model before training."""
    BROKEN = 23
    """`runs diagnose`: nothing could be learned; the output names the reason."""
    INCOMPLETE = 24
    """`runs diagnose`: the run has not ended, or has no evaluation before and after training."""
    DIFFERS = 25
    """`replay`: a level is not the same as in the recorded run."""
    RESOURCE = 74
    """Disk full, quota reached, no permission to write, or the working directory is gone."""
    INTERRUPTED = 130
    TERMINATED = 143


class XpError(Exception):
    """A fault that the user can fix: the message says what is wrong, where, and how to fix it.

    Args:
        message: one to three lines, complete without a traceback.
        code: the process's exit status.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.CONFIG) -> None:
        super().__init__(message)
        self.code = code


def nearest(word: str, legal: Iterable[str]) -> str:
    """Returns ` (did you mean x?)`, or an empty text where no legal name is close."""
    names = list(legal)
    if len(word) >= 3:
        longer = [name for name in names if name.startswith(word)]
        if len(longer) == 1:
            return f" (did you mean {longer[0]}?)"
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.55)
    by_last_part = difflib.get_close_matches(
        word.rpartition(".")[2], [n.rpartition(".")[2] for n in names], 1, 0.75
    )
    if not match and by_last_part:
        match = [n for n in names if n.rpartition(".")[2] == by_last_part[0]][:1]
    if match:
        return f" (did you mean {match[0]}?)"
    return ""
