"""Address of an environment and its secrets; the API key and secrets are sent to allowed origins only."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from xp.envs.config import EnvConfig
from xp.errors import ExitCode, XpError
from xp.lib.loopback import is_loopback

DEFAULT_URL = "https://openreward.ai"
API_KEY = "OPENREWARD_API_KEY"
HOST_TOKEN = "HF_TOKEN"
"""Variable with the token for a private Hugging Face space."""


@dataclass(frozen=True)
class Target:
    """A server of environments; its repr has no headers or secrets."""

    url: str
    """Scheme, host, port and path prefix, without a trailing slash."""
    deployment: str | None
    """`Org/Name` in the catalog, whose server needs a session for every request. None means another server."""
    headers: Mapping[str, str] = field(repr=False)
    """Headers of every request."""
    secrets: Mapping[str, str] = field(repr=False)
    """Secrets that are sent when a session is created."""
    overrides: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the catalog sets in the environment's container, for a session that is created."""

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.url)


def remote_target(config: EnvConfig, environ: Mapping[str, str]) -> Target:
    """The target of a URL or of a catalog name.

    Raises:
        XpError: a secret is missing, or its origin is not allowed.
    """
    name = config.target or ""
    is_url = "://" in name
    api_url, session_url = _catalog_urls(environ)
    url = name.rstrip("/") if is_url else session_url
    place = origin(url)
    catalog = (origin(api_url), origin(session_url))
    # A loopback port may belong to any user of the machine, so its origin must be listed too.
    is_allowed = place in map(origin, config.allowed_origins) or (
        place in catalog and place.startswith("https://")
    )
    secrets = _secret_values(config, environ)
    if secrets and not is_allowed:
        raise _not_allowed(f"environment {config.name}: its secrets", url)
    headers = {} if is_url else {"X-Deployment": name}
    key = environ.get(API_KEY)
    if key and is_allowed:
        headers["X-API-Key"] = _header(key, API_KEY)
    elif key and not is_url:
        raise _not_allowed(f"environment {config.name}: {API_KEY}", url)
    elif not is_url:
        raise XpError(
            f"environment {config.name} is in the OpenReward catalog and needs {API_KEY}",
            ExitCode.SECRET,
        )
    if is_url:
        return Target(url, None, headers, _secrets_header(secrets))
    overrides = override_values(config, environ)
    return Target(url, name, headers, _catalog_secrets(secrets, key or "", url, api_url), overrides)


def openenv_target(config: EnvConfig, environ: Mapping[str, str]) -> Target:
    """The target of an OpenEnv server at a URL; its only possible secret is the token of its host.

    Raises:
        XpError: a secret is missing or not supported, or its origin is not allowed.
    """
    url = (config.target or "").rstrip("/")
    values = _secret_values(config, environ)
    where = f"environment {config.name}"
    unknown = sorted(set(values) - {HOST_TOKEN})
    if unknown:
        raise XpError(
            f"{where}: an OpenEnv server accepts no secrets except {HOST_TOKEN}, not {unknown}"
        )
    is_allowed = origin(url) in map(origin, config.allowed_origins)
    if values and not (is_allowed and (url.startswith("https://") or is_loopback(url))):
        raise _not_allowed(f"{where}: {HOST_TOKEN}", url, "; https only")
    if values:
        headers = {"Authorization": f"Bearer {_header(values[HOST_TOKEN], HOST_TOKEN)}"}
    else:
        headers = {}
    return Target(url, None, headers, {})


def api_target(
    environ: Mapping[str, str], allowed_origins: Iterable[str] = (), what: str = "upload_rollouts"
) -> Target:
    """The target of the OpenReward API.

    Args:
        environ: variables with the API key and the API's URL.
        allowed_origins: `allowed_origins` of the run's environments. A loopback port may belong to any user of the
            machine, so its origin must be listed.
        what: name of the use in messages.

    Raises:
        XpError: there is no API key, or the API's URL is neither https nor a listed loopback port.
    """
    url, _ = _catalog_urls(environ)
    key = environ.get(API_KEY)
    if not key:
        raise XpError(f"{what} needs {API_KEY}", ExitCode.SECRET)
    if not url.startswith("https://"):
        if not is_loopback(url):
            raise XpError(f"{what}: {API_KEY} would go to {origin(url)} in the clear; use https")
        if origin(url) not in map(origin, allowed_origins):
            raise _not_allowed(
                f"{what}: {API_KEY}", url, "; a port of this machine may belong to any of its users"
            )
    return Target(url, None, {"X-API-Key": _header(key, API_KEY)}, {})


def served_target(url: str, key: str, config: EnvConfig, environ: Mapping[str, str]) -> Target:
    """The target of a server that this process has started."""
    return Target(url, None, {"X-API-Key": key}, _secrets_header(_secret_values(config, environ)))


@lru_cache(maxsize=256)
def origin(url: str) -> str:
    """scheme://host:port of a URL, with the default port added."""
    with suppress(ValueError):
        parts = urlsplit(url)
        port = {"http": 80, "https": 443}.get(parts.scheme)
        if port is not None and parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            return f"{parts.scheme}://{host}:{parts.port or port}"
    shown = f" {url!r}"
    if any(mark in url for mark in "@?#"):
        shown = ""  # it may hold a password or a token
    raise XpError(
        f"the address{shown} of an environment is not a URL with a legal host and port;"
        " write http://HOST:PORT or https://HOST"
    )


def _header(value: str, name: str) -> str:
    """A secret as a header's value; raises XpError(SECRET), without the value, if it is not legal in a header."""
    if not value.isprintable():
        raise XpError(
            f"{name} holds a line break or another control character; set it again", ExitCode.SECRET
        )
    return value


def _not_allowed(what: str, url: str, more: str = "") -> XpError:
    return XpError(
        f"{what} would go to {origin(url)}, which is not allowed.\n"
        f"Add it to allowed_origins of the environment if you trust that server{more}."
    )


def _catalog_urls(environ: Mapping[str, str]) -> tuple[str, str]:
    base = urlsplit(environ.get("OPENREWARD_URL") or DEFAULT_URL)
    api, session = (
        base._replace(netloc=f"{name}.{base.netloc}").geturl() for name in ("api", "sessions")
    )
    api = environ.get("OPENREWARD_API_URL") or api
    session = environ.get("OPENREWARD_SESSION_URL") or session
    return api.rstrip("/"), session.rstrip("/")


def override_values(config: EnvConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env.overrides`; raises XpError(SECRET) for a secret without a value."""
    for name, variable in config.secret_overrides.items():
        if not environ.get(variable):
            what = f"environment {config.name}: overrides.{name} needs {variable}, which is not set"
            raise XpError(what, ExitCode.SECRET)
    plain = {name: value for name, value in config.overrides.items() if isinstance(value, str)}
    return plain | {name: environ[variable] for name, variable in config.secret_overrides.items()}


def _secret_values(config: EnvConfig, environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for name in config.secrets:
        value = environ.get(name) or environ.get(name.upper())
        if not value:
            names = dict.fromkeys([name, name.upper()])
            raise XpError(
                f"environment {config.name} needs the secret {name}, and {' or '.join(names)} is not set",
                ExitCode.SECRET,
            )
        values[name] = value
    return values


def _secrets_header(values: Mapping[str, str]) -> dict[str, str]:
    """Header of secrets without domains, for the user's own server, which does not forward them."""
    if not values:
        return {}
    payload = {name: {"value": value, "allowed_domains": []} for name, value in values.items()}
    return {"X-Secrets": base64.b64encode(json.dumps(payload).encode()).decode()}


def _catalog_secrets(
    values: Mapping[str, str], key: str, session_url: str, api_url: str
) -> dict[str, str]:
    """Secrets with the domains to which the catalog's proxy may forward them; the SDK has the list."""
    package = importlib.util.find_spec("openreward")
    if package is None or package.origin is None:
        raise XpError(
            "environments of the OpenReward catalog need the package openreward", ExitCode.RUNTIME
        )
    # By its path: `import openreward` imports the packages of three vendors first (xp.envs.light_sdk).
    path = Path(package.origin).parent / "api" / "sandboxes" / "secrets.py"
    spec = importlib.util.spec_from_file_location("_xp_openreward_secrets", path)
    assert spec is not None
    assert spec.loader is not None
    sdk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sdk)
    unknown = [name for name in values if name not in sdk.WELL_KNOWN_SECRETS]
    if unknown:
        raise XpError(
            f"the OpenReward catalog does not know where the secret {unknown[0]} may go.\n"
            f"Known names: {', '.join(sorted(sdk.WELL_KNOWN_SECRETS))}",
            ExitCode.SECRET,
        )
    everything = sdk.augment_secrets_with_api_key(dict(values), key, session_url, api_url)
    return {"X-Secrets": sdk.build_secrets_header(everything)}


def module_of(target: str) -> str:
    """Module of a verifiers package from its hub's name: `my_package` for `owner/my-package@1.0`."""
    return target.rsplit("/", 1)[-1].partition("@")[0].replace("-", "_").lower()
