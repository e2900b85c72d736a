"""A Ray cluster on this machine for one job: on 127.0.0.1, and only for processes with its token.

Ray reads its settings once, at import; a program that starts such a cluster must call `close_to_others` first.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.lib.atomic import private_directory
from xp.lib.digest import text_digest
from xp.lib.loopback import HOST
from xp.lib.loopback_binding import ONE_MACHINE

MODE = "RAY_AUTH_MODE"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
TOKEN = "RAY_AUTH_TOKEN"
COMMAND = ("-m", "ray.scripts.scripts")
"""Words after a Python that run Ray's command line."""
NICENESS = {"RAY_worker_niceness": "0"}
"""Priority of Ray's workers. With Ray's own niceness of 15, Linux gives an engine 3 % of a core (weights of 36 and
1,024) on which an environment's server of the same run works."""
DIRECTORY = "XP_OWN_RAY"
"""Variable with the directory of this process's own cluster."""
PRETENDED_GPUS = "XP_PRETENDED_GPUS"
"""Variable of a job on a cluster of several nodes with pretended GPUs: their number per node."""


def make_directory() -> Path:
    """Makes a directory for a new token and the cluster's files; see xp.lib.atomic."""
    # A short path: Ray's sockets are below it, and a socket's path may have 107 bytes.
    directory = private_directory("ray", Path("/tmp"))
    token = token_file(directory)
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    return directory


def directory_named(name: str) -> Path:
    """Makes the directory of this name; the path is the same on every node of a cluster, as Ray needs it.

    Raises:
        PermissionError: another user owns it.
    """
    directory = Path("/tmp", f"xp-ray-{text_digest(name)[:10]}")
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    stats = directory.lstat()
    if (
        not stat.S_ISDIR(stats.st_mode)
        or stats.st_uid != os.getuid()
        or stat.S_IMODE(stats.st_mode) != 0o700
    ):
        raise PermissionError(f"{directory} is not a directory of this user alone")
    return directory


def token_variables(file: Path) -> dict[str, str]:
    """Variables that pass a cluster's token to a process."""
    return {MODE: "token", TOKEN_PATH: str(file)}


def joining(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """An environment with further variables; if these have a token, another cluster's token is removed."""
    # Ray prefers RAY_AUTH_TOKEN to the file, and passes it on as plain text.
    return {
        name: value for name, value in environ.items() if name != TOKEN or TOKEN_PATH not in more
    } | dict(more)


def token_file(directory: Path) -> Path:
    return directory / "token"


def files(directory: Path) -> Path:
    """Directory of the cluster's files; Ray makes it readable for every user, but its parent is not."""
    return directory / "ray"


def variables(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Environment of the cluster's programs, without another cluster's token."""
    return {
        **NICENESS,
        **joining(environ, token_variables(token_file(directory))),
        ONE_MACHINE: "1",
        # Without it Ray replaces 127.0.0.1 by an address that other machines can reach.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }


def close_to_others() -> None:
    """Prepares this process to start its own cluster, whose files are removed when the process ends.

    Raises:
        RuntimeError: Ray is imported already, and would start a cluster without a token.
    """
    directory = os.environ.get(DIRECTORY)
    # One variable for all: if a program dropped only RAY_*, its children would start a cluster without a token.
    if directory is not None and os.environ.get(TOKEN_PATH) == str(token_file(Path(directory))):
        return
    if "ray" in sys.modules:
        raise RuntimeError(
            "ray was imported before xp.lib.private_ray.close_to_others(), and reads its settings only then"
        )
    session = make_directory()
    closed = variables(os.environ, session)
    os.environ.pop(TOKEN, None)
    os.environ.update(closed)
    os.environ[DIRECTORY] = str(session)


def start(**arguments: Any) -> None:
    """Calls ray.init, with further arguments, so that it starts the cluster of this process."""
    import ray

    # `local`, or it would join any cluster that it finds.
    ray.init(
        address="local",
        include_dashboard=False,
        _node_ip_address=HOST,
        _temp_dir=str(files(Path(os.environ[DIRECTORY]))),
        **arguments,
    )


def engine_key() -> str | None:
    """Key of the inference servers in this process's cluster; None if the cluster has no token.

    Every process of such a cluster reads the same token, from which the key follows.
    """
    if ONE_MACHINE not in os.environ or not os.environ.get(TOKEN_PATH):
        return None
    token = Path(os.environ[TOKEN_PATH]).read_bytes().strip()
    return hmac.new(token, b"inference servers", "sha256").hexdigest()
