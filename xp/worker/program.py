"""Runs a stage's program: a fault becomes one message and an exit code, without a traceback."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from xp.envs import picture_store
from xp.envs.base import EnvFault
from xp.errors import ExitCode, XpError
from xp.lib import loaded_code
from xp.lib.signals import StopSignal, stopping

BEGAN = "XP_STAGE_BEGAN"
"""Variable with the time at which the stage's program began, for its child processes too."""
CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
}
"""Variables of compiled code -> directory below `cache` of the outputs root, so that a container or a new machine does
not compile again. Each program names its entries by its version and the shapes (docs.vllm.ai, torch.compile)."""
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EPERM, errno.EACCES, errno.EFBIG, errno.EROFS)


def run_stage(program: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Runs a stage's program on its arguments.

    A signal becomes an exception, so that sessions are closed and child processes stopped.

    Returns:
        The exit code: 0, the XpError's own, ENVIRONMENT for an EnvFault, INTERNAL for a bug (with its traceback).
    """
    os.environ.setdefault(BEGAN, str(time.time()))
    for config in argv[:1]:  # in the stage's directory
        os.environ.setdefault(
            loaded_code.VARIABLE, str(Path(config).absolute().with_name(loaded_code.FILE))
        )
    os.environ.setdefault(picture_store.VARIABLE, str(Path.cwd() / picture_store.DIRECTORY))
    for name, folder in CACHES.items():
        os.environ.setdefault(name, str(Path.cwd() / "cache" / folder))
    try:
        with stopping():
            program(argv)
    except StopSignal as stopped:
        # Not the signal's name: xp's own Ctrl-C reaches a stage as TERM.
        return _tell("this stage was stopped", stopped.code)
    except XpError as error:
        return _tell(str(error), error.code)
    except EnvFault as fault:
        return _tell(
            f"the environment failed: {type(fault).__name__}: {fault}", ExitCode.ENVIRONMENT
        )
    except Exception as error:
        message = _writing_fault(error)
        if message is not None:
            return _tell(message, ExitCode.RESOURCE)
        traceback.print_exc()
        return ExitCode.INTERNAL
    return ExitCode.OK


def _writing_fault(error: Exception) -> str | None:
    """The message about a disk that is full or refuses to be written. None means another fault."""
    number = getattr(error, "errno", None)
    path = getattr(error, "filename", None) or Path.cwd()
    if type(error).__name__ == "SafetensorError":
        # Its only type of error has the system's number in its text.
        number = next((full for full in FULL if f"(os error {full})" in str(error)), None)
    if number in FULL:
        what = f"{type(error).__name__}: {error}"
        return f"the disk of {path} is full; make room and resume the run ({what})"
    if isinstance(error, OSError) and number in REFUSED:
        return f"{error.strerror}: {path}; permit writing there"
    return None


def _tell(message: str, code: ExitCode) -> int:
    if os.environ.get("XP_DEBUG") == "1":
        traceback.print_exc()
    print(f"xp: {message}", file=sys.stderr, flush=True)
    return int(code)
