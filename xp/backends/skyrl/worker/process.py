"""Sets up every Python process of a SkyRL job, before it imports SkyRL."""

from __future__ import annotations

import logging
import os
import sys
import typing
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from xp.lib import loopback_binding
from xp.lib.patching import Execute, around_import
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
    if loopback_binding.ONE_MACHINE in os.environ:
        loopback_binding.bind_to_loopback()
    else:
        use_rays_interface()
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    if find_spec("flash_attn") is None:
        around_import(IMPORTER, _without_flash)  # before SkyRL is imported
    # torchdata 0.11.0 calls a function that torch 2.13.0 has deprecated.
    warnings.filterwarnings("ignore", message=".*set_vital.*", category=UserWarning)
    # SkyRL drops the HTTP sessions of event loops that have ended, and aiohttp would print each as an error.
    logging.getLogger("asyncio").addFilter(
        lambda record: not record.getMessage().startswith("Unclosed ")
    )
    if sys.version_info < (3, 12):
        # skyrl 0.4.0 asks for 3.12. Only one use needs it: a typing.TypedDict in a pydantic model.
        import typing_extensions

        typing.TypedDict = typing_extensions.TypedDict


IMPORTER = "skyrl.backends.skyrl_train.workers.model_wrapper"
"""Module that imports FlashAttention, used or not."""


def _without_flash(execute: Execute, module: ModuleType) -> None:
    """Runs a module with two placeholders for FlashAttention, which are removed afterwards, since vLLM looks for it
    too."""
    # transformers checks here, once, for the package, and would find the placeholder.
    import transformers.integrations.flash_attention  # noqa: F401

    with standing_in(_flash_attention()):
        execute(module)


def _flash_attention() -> Sequence[ModuleType]:
    package = ModuleType("flash_attn")
    padding = ModuleType("flash_attn.bert_padding")
    padding.pad_input = padding.unpad_input = _absent  # type: ignore[attr-defined]
    package.__path__ = []
    package.__spec__ = ModuleSpec("flash_attn", None, is_package=True)
    return package, padding


@contextmanager
def standing_in(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Context manager: these modules, which are not installed, can be imported."""
    names = {module.__name__: module for module in modules}
    sys.modules |= names
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _absent(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "flash-attn is not installed here: set backend.attention=sdpa (trainer.flash_attn=false)"
    )
