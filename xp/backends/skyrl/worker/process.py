"""Sets up every Python process of a SkyRL job, before it imports SkyRL."""

from __future__ import annotations

import os
import sys
import typing
import warnings

from xp.backends.skyrl.worker import attention
from xp.lib import loopback
from xp.worker.nodes import use_rays_interface

VARIABLES = {
    # Disables Ray's usage reports.
    "RAY_USAGE_STATS_ENABLED": "0",
    # At INFO, SkyRL prints its whole configuration, and a few lines per step; before it sets up logging, loguru does.
    "LOG_LEVEL": "WARNING",
    "LOGURU_LEVEL": "WARNING",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
"""Variables that are set, unless they are set already, before Ray starts, since its processes inherit them."""


def prepare_process() -> None:
    """Makes SkyRL importable and quiet; called first in the driver, and by Ray in each worker."""
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
        # skyrl 0.3.0 supports Python 3.11, but uses a typing.TypedDict in a pydantic model, which needs 3.12.
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict
