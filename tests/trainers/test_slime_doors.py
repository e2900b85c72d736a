"""Addresses that Slime's real code gives its router and its engines, where a job has this machine alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.slime_setup import needs_slime, slime_arguments, tiny_directory
from xp.security import loopback

pytestmark = needs_slime


@pytest.fixture(autouse=True)
def _on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in loopback.variables().items():
        monkeypatch.setenv(name, value)


def test_engine_and_router_get_the_loopback_address_as_their_host(tmp_path: Path) -> None:
    from sglang_router.launch_router import RouterArgs
    from slime.backends.sglang_utils.sglang_engine import _compute_server_args
    from slime.utils.http_utils import get_host_info

    args = slime_arguments(tiny_directory(tmp_path), "--router-prometheus-host", loopback.HOST)
    host = get_host_info()[1]
    assert host == loopback.HOST
    assert RouterArgs.from_cli_args(args, use_router_prefix=True).prometheus_host == loopback.HOST
    made, _ = _compute_server_args(args, 0, f"{host}:1", 2, host, 3, base_gpu_id=0)
    assert (made["host"], made["dist_init_addr"]) == (loopback.HOST, f"{loopback.HOST}:1")
