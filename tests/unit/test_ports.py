"""Ports for programs that take them later, and requests to them."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from requests.utils import get_environ_proxies

from xp.lib.loopback import HOST, free_ports
from xp.lib.loopback_binding import loopback_variables


def test_ports_are_different_and_free() -> None:
    ports = free_ports(20, HOST)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server((HOST, port)).close()


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [
        (None, None, "127.0.0.1"),
        ("localhost", None, "localhost,127.0.0.1"),
        ("localhost", "127.0.0.1", "localhost,127.0.0.1"),
        (None, "a.example,b.example", "a.example,b.example,127.0.0.1"),
        ("*", "a.example", "*"),
    ],
)
def test_no_request_to_this_machine_goes_to_the_shells_proxy(
    lower: str | None, upper: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have an engine's key; of the two spellings, `requests` and urllib read the lower one alone."""
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    for name, value in (("no_proxy", lower), ("NO_PROXY", upper)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    for _ in range(2):
        for name, value in loopback_variables().items():
            monkeypatch.setenv(name, value)
    assert get_environ_proxies(f"http://{HOST}:8000/v1") == {}
    assert urllib.request.proxy_bypass(f"{HOST}:8000")
    assert loopback_variables()["no_proxy"] == loopback_variables()["NO_PROXY"] == expected
