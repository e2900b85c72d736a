"""Set-up of every Python process of a SkyRL job, before it imports SkyRL."""

from __future__ import annotations

import os
import sys
import typing
import warnings

from xp.backends.skyrl.worker import attention
from xp.security import loopback
from xp.worker.nodes import use_rays_interface

VARIABLES = {
    # Nobody asked for Ray's usage reports.
    "RAY_USAGE_STATS_ENABLED": "0",
    # SkyRL prints its whole configuration, and a few lines a step, at INFO. Until it sets up logging, loguru's counts.
    "LOG_LEVEL": "WARNING",
    "LOGURU_LEVEL": "WARNING",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Set where the environment does not say otherwise, before Ray starts: its processes inherit them."""


def prepare_process() -> None:
    """Make SkyRL importable and quiet; called first in the driver, and by Ray in each of its workers."""
    if loopback.ONE_MACHINE in os.environ:
        loopback.stay()
    else:
        use_rays_interface()
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    attention.do_without()
    # torchdata 0.11.0 calls a function that torch 2.13.0 has deprecated.
    warnings.filterwarnings("ignore", message=".*set_vital.*", category=UserWarning)
    if sys.version_info < (3, 12):
        # skyrl 0.3.0 asks for Python 3.11, but puts a typing.TypedDict into a pydantic model, which 3.12 alone can do.
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
