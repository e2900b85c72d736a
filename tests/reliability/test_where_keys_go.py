"""Keys and secrets go to origins that are listed, or that this run serves; no URL carries one into the run's files."""

from __future__ import annotations

import base64
import json

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import TASK, World
from tests.support.ors_server import rules
from tests.support.sections import replace
from xp.composition import compose
from xp.envs import target as targets
from xp.envs.base import EnvFault, ProtocolError, UnsafeOrigin
from xp.errors import ExitCode, XpError
from xp.planning.episode import episode_config

KEY = {"OPENREWARD_API_KEY": "XPCANARY0123456789"}


TOKEN = {"HF_TOKEN": "XPCANARY"}


@pytest.mark.parametrize(
    ("target", "allowed", "is_sent"),
    [
        ("https://a.hf.space/v1", ("https://b.example", "https://a.hf.space:443/other"), True),
        ("https://a.hf.space", ("https://b.hf.space",), False),
        ("http://a.hf.space", ("http://a.hf.space",), False),
        ("http://127.0.0.1:9", ("http://127.0.0.1:9",), True),
        ("http://127.0.0.1:9", (), False),
    ],
)
def test_a_token_of_an_openenv_server_goes_to_listed_origins_in_secret(
    target: str, allowed: tuple[str, ...], is_sent: bool
) -> None:
    config = rules(
        provider="openenv", target=target, allowed_origins=allowed, secrets={"HF_TOKEN": None}
    )
    if is_sent:
        to = targets.openenv_target(config, TOKEN)
        assert (to.url, to.headers, to.secrets) == (
            target.rstrip("/"),
            {"Authorization": "Bearer XPCANARY"},
            {},
        )
        assert "XPCANARY" not in repr(to)
    else:
        with pytest.raises(XpError, match=r"HF_TOKEN would go to .*, which is not allowed"):
            targets.openenv_target(config, TOKEN)
    assert targets.openenv_target(replace(config, secrets={}), TOKEN).headers == {}
    with pytest.raises(XpError, match="accepts no secrets except HF_TOKEN, not"):
        targets.openenv_target(
            replace(config, secrets={"HF_TOKEN": None, "OTHER": None}), {**TOKEN, "OTHER": "x"}
        )
    with pytest.raises(XpError, match="needs the secret HF_TOKEN, and HF_TOKEN is not set"):
        targets.openenv_target(config, {})


def test_the_catalog_gets_the_key_and_the_environments_name() -> None:
    config = rules(target="Org/Name", allowed_origins=(), secrets={})
    to = targets.remote_target(config, KEY)
    assert to.url == "https://sessions.openreward.ai"
    assert to.deployment == "Org/Name"
    assert to.headers == {"X-Deployment": "Org/Name", "X-API-Key": KEY["OPENREWARD_API_KEY"]}
    with pytest.raises(
        XpError, match="in the OpenReward catalog and needs OPENREWARD_API_KEY"
    ) as caught:
        targets.remote_target(config, {})
    assert caught.value.code is ExitCode.SECRET
    elsewhere = {**KEY, "OPENREWARD_SESSION_URL": "http://other.example"}
    with pytest.raises(
        XpError,
        match=r"OPENREWARD_API_KEY would go to http://other.example:80, which is not allowed",
    ):
        targets.remote_target(config, elsewhere)
    own = rules(target="https://own.example/", allowed_origins=(), secrets={"MY_SECRET": None})
    with pytest.raises(
        XpError, match=r"its secrets would go to https://own.example:443, which is not allowed"
    ):
        targets.remote_target(own, {**KEY, "MY_SECRET": "x"})
    to = targets.remote_target(
        replace(own, allowed_origins=("https://own.example",)), {"my_secret": "", "MY_SECRET": "x"}
    )
    assert to.url == "https://own.example"
    assert to.deployment is None
    assert to.headers == {}
    assert to.secrets["X-Secrets"] not in repr(
        replace(to, overrides={"A": to.secrets["X-Secrets"]})
    )
    payload = json.loads(base64.b64decode(to.secrets["X-Secrets"]))
    assert payload == {"MY_SECRET": {"value": "x", "allowed_domains": []}}


@pytest.mark.parametrize(
    ("url", "expected", "is_loopback"),
    [
        ("https://A.example/x", "https://a.example:443", False),
        ("http://localhost:1", "http://localhost:1", True),
        ("http://127.1:1", "http://127.1:1", True),
        ("http://2130706433:1", "http://2130706433:1", True),
        ("http://[::ffff:127.0.0.1]:1", "http://[::ffff:127.0.0.1]:1", True),
        ("http://0:1", "http://0:1", False),
        ("http://localhost.example:1", "http://localhost.example:1", False),
    ],
)
def test_an_origin_has_scheme_host_and_port(url: str, expected: str, is_loopback: bool) -> None:
    assert targets.origin(url) == expected
    assert targets.is_loopback(url) == is_loopback


def test_an_address_of_the_catalog_without_its_scheme_is_not_repeated() -> None:
    variable = "OPENREWARD_API_URL"
    (config,) = episode_config(compose(["env=openreward", "env.target=a/b"])).members.values()
    with pytest.raises(XpError, match="is not a URL with a legal host") as caught:
        targets.remote_target(config, {**KEY, variable: "alice:XPCANARY@host:80"})
    assert "XPCANARY" not in str(caught.value)


def test_a_redirect_is_told_without_what_may_be_a_token(world: World) -> None:
    goal = "https://alice:XPCANARY@elsewhere.example/login?token=XPCANARY"
    world.proxy.inject(
        "/create",
        faults.status(307, {"Location": goal}),
        times=1,
    )
    with pytest.raises(UnsafeOrigin, match=r"https://elsewhere\.example:443") as caught:
        world.provider().open(TASK)
    assert "XPCANARY" not in str(caught.value)
    world.proxy.inject(
        "/create",
        faults.status(307, {"Location": "/create"}),
        times=1,
    )
    with pytest.raises(ProtocolError, match="a redirect to the same server"):
        world.provider().open(TASK)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\0b"])
def test_control_characters_in_an_id_or_a_key_never_reach_a_header(
    world: World, value: str
) -> None:
    world.proxy.inject(
        "/create_session", faults.replied(json.dumps({"sid": value}).encode()), times=99
    )
    with pytest.raises(EnvFault):
        world.provider().open(TASK)
    with pytest.raises(XpError, match="control character") as caught:
        targets.remote_target(world.config(), {"OPENREWARD_API_KEY": value})
    assert caught.value.code is ExitCode.SECRET
