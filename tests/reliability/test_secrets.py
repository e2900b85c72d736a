"""Where the API key and the secrets go, and where a local server listens."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

import psutil
import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import TASK, World
from tests.support.child import ended
from tests.support.ors_server import COUNTER, rules, running
from xp.envs import target as targets
from xp.envs.base import EnvFault, UnsafeOrigin
from xp.envs.openreward import OpenRewardProvider

CANARY = "XPCANARY_7d1f"
KEY = {"OPENREWARD_API_KEY": CANARY}


def remote(**changes: Any) -> Any:
    return rules(**{"target": "https://elsewhere.example:8443", "variant": "counter", **changes})


@pytest.mark.parametrize(
    "url",
    [
        "http://elsewhere.example:8443",
        "https://elsewhere.example.evil.example:8443",
        "https://elsewhere.example:8443@evil.example",
        "http://127.0.0.1.evil.example",
        *("http://127.0.0.1:10", "http://localhost:9", "https://127.0.0.1:9"),
    ],
)
def test_an_origin_is_compared_whole(url: str) -> None:
    allowed = ("https://elsewhere.example:8443", "http://127.0.0.1:9")
    assert (
        "X-API-Key"
        not in targets.remote_target(remote(target=url, allowed_origins=allowed), KEY).headers
    )


@pytest.mark.parametrize("path", ["/create", "/call"])
def test_no_redirect_is_followed(world: World, path: str) -> None:
    """Two servers: the first redirects everything to the second, which must receive nothing."""
    with faults.FaultProxy(world.proxy.upstream) as other:
        world.proxy.inject(
            path,
            faults.status(308, {"Location": f"{other.url}{path}"}),
            times=99,
        )
        provider = OpenRewardProvider(world.config(), {**os.environ, **KEY})
        world.providers.append(provider)
        with pytest.raises(UnsafeOrigin):
            provider.open(TASK).call("inc", {})
        assert other.seen == []
        assert world.proxy.seen[0].headers["x-api-key"] == CANARY


def test_secrets_travel_with_the_creation_alone(world: World) -> None:
    config = world.config(secrets={"GRADER_KEY": None})
    provider = OpenRewardProvider(config, {**os.environ, "GRADER_KEY": CANARY})
    world.providers.append(provider)
    assert provider.open(TASK).call("secret", {"value": "GRADER_KEY"}).text == CANARY
    carrying = {exchange.path for exchange in world.proxy.seen if "x-secrets" in exchange.headers}
    assert carrying == {"/create_session", "/create"}


@pytest.mark.parametrize("path", ["/create", "/call"])
def test_no_secret_is_in_a_repr_a_log_or_an_exception(
    world: World, path: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = {**os.environ, **KEY, "GRADER_KEY": CANARY}
    provider = OpenRewardProvider(world.config(secrets={"GRADER_KEY": None}), secret)
    world.providers.append(provider)
    heard = [repr(provider), repr(targets.remote_target(world.config(), secret))]
    with caplog.at_level("DEBUG"):
        moved = faults.status(302, {"Location": "/x"})
        for fault in (faults.status(401), faults.status(500), faults.reset(True), moved):
            world.proxy.inject(path, fault, times=3)
            try:
                provider.open(TASK).call("inc", {})
            except EnvFault:
                heard.append(traceback.format_exc())
            world.proxy._injected.clear()
    out, err = capfd.readouterr()
    everything = "\n".join([*heard, caplog.text, out, err])
    assert CANARY not in everything
    assert base64.b64encode(CANARY.encode()).decode()[:12] not in everything


def test_a_local_server_listens_on_loopback_alone() -> None:
    server = running(COUNTER).server
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(server.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize("key", [None, "wrong", "é"])
def test_a_local_server_answers_nobody_without_the_key(key: str | None) -> None:
    import urllib.error
    import urllib.request

    server = running(COUNTER).server
    headers = {} if key is None else {"X-API-Key": key}
    for path in ("/health", "/list_environments", "/counter/splits", "/docs"):
        request = urllib.request.Request(server.url + path, headers=headers)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=250)
        assert caught.value.code == 401
        assert b"requires the key" in caught.value.read()


PARENT = """
import sys, time
sys.path[:0] = {path!r}
from xp.envs.local_server import LocalServer
server = LocalServer({serve!r})
server.start()
print(server.pid, flush=True)
while True:
    time.sleep(0.1)  # Not once: a signal that comes just before a sleep does not shorten it.
"""


def test_a_local_server_ends_with_its_parent_however_that_ends() -> None:
    end = signal.SIGKILL
    program = PARENT.format(path=[entry or os.getcwd() for entry in sys.path], serve=COUNTER)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(end)
        parent.wait(250)
    until = time.monotonic() + 250
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.05)


AUDITED = """
import sys
sys.path[:0] = {path!r}
places = []
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        places.append(repr(arguments[1:] if event == "socket.connect" else arguments))
sys.addaudithook(hook)
import os
from tests.support.ors_server import rules, COUNTER
from tests.reliability.conftest import TASK
from xp.envs.config import load_provider
provider = load_provider(rules(serve=COUNTER), os.environ)
session = provider.open(TASK)
session.call("inc", {{}})
provider.close()
print("\\n".join(sorted(set(places))))
print("openreward" in sys.modules)
"""


def test_nothing_but_the_configured_host_is_spoken_to() -> None:
    program = AUDITED.format(path=[entry or os.getcwd() for entry in sys.path])
    environ = {**os.environ, "HTTP_PROXY": "http://192.0.2.1:1", "http_proxy": "http://192.0.2.1:1"}
    done = ended([sys.executable, "-c", program], env=environ)
    assert done.returncode == 0, done.stderr
    *places, has_sdk = done.stdout.splitlines()
    assert places
    assert all("'127.0.0.1'" in place for place in places), places
    assert has_sdk == "False"
