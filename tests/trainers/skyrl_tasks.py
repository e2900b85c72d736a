"""What tests run in a process of Ray's."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.listeners import Listener, listeners
from xp.backends.skyrl.worker.engine_watch import Engines, engine_faults
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.errors import ExitCode, XpError


def look_around(
    cfg: Any, names: list[str], canaries: list[list[str]]
) -> tuple[dict[str, str | None], list[str]]:
    """The variables of these names here, and where in Ray's records each canary is found.

    Args:
        canaries: in pieces, so that the arguments of this task are not what is found.
    """
    del cfg
    whole = ["".join(pieces) for pieces in canaries]
    found = [
        f"{canary} in {place}" for place, text in _records() for canary in whole if canary in text
    ]
    return {name: os.environ.get(name) for name in names}, found


def fail(cfg: Any) -> None:
    del cfg
    raise XpError("too much of it is void", ExitCode.UNHEALTHY)


def crash(cfg: Any) -> None:
    del cfg
    raise ValueError("a fault of SkyRL's")


def kill_itself(cfg: Any) -> None:
    del cfg
    os.kill(os.getpid(), signal.SIGKILL)


def ask_engine(cfg: Any, port: int, status: int) -> None:
    """Ask an engine that has ended (status 0) or answers with this status, by SkyRL's own client."""
    from aiohttp import web
    from skyrl.backends.skyrl_train.inference_servers import remote_inference_client

    del cfg
    remote_inference_client._DATA_PLANE_RETRIES = 2  # of 30, a second apart

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({}, status=status)

    async def ask() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        if status:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        url = f"http://127.0.0.1:{port}"
        client = remote_inference_client.RemoteInferenceClient(
            proxy_url=url, server_urls=[url], model_name="tiny", data_parallel_size=1
        )
        try:
            await client.sleep()
        finally:
            await client.teardown()

    with engine_faults():
        asyncio.run(ask())


def linger_with_engine(cfg: Any, url: str, diary: Path) -> None:
    """Name an engine, then wait for it."""
    Engines((url,), has_key=False).write(Path(cfg.trainer.log_path))
    linger(cfg, diary)


def linger(cfg: Any, diary: Path) -> None:
    """Wait in an event loop with open sessions, as a training does for most of its time."""
    del cfg

    async def wait() -> None:
        try:
            diary.write_text("open")
            await asyncio.sleep(600)
        finally:
            diary.write_text("closed")

    asyncio.run(wait())


STRANGER = """
from ray._raylet import GcsClient
try:
    print("accepted", GcsClient(address={address!r}).get_all_node_info(timeout={timeout_s}))
except Exception as error:
    print("refused" if "token" in str(error) else error)
"""


def listen(cfg: Any) -> tuple[list[str], set[Listener]]:
    """What a client without a token gets of Ray; every listener of the cluster."""
    import psutil
    import ray

    del cfg
    address = ray.get_runtime_context().gcs_address
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "HOME": "/"
    }
    stranger = [sys.executable, "-c", STRANGER.format(address=address, timeout_s=DEADLINE_S)]
    said = subprocess.run(
        stranger, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    raylet = psutil.Process().parent()
    assert raylet is not None
    driver = raylet.parent()
    assert driver is not None
    return [*said.stdout.split(maxsplit=1), said.stderr], listeners(driver.pid)


def serve(cfg: Any) -> tuple[list[int], list[str], set[Listener]]:
    """Status of an engine's answers to SkyRL's clients and to strangers; every listener of this process.

    The engine is what SkyRL makes of one, uvicorn on every address with xp's middleware, and says `{}` to everything.
    """
    import threading
    import time

    import httpx
    import uvicorn
    from skyrl.backends.skyrl_train.weight_sync.control_plane import SkyrlWeightSyncClient

    from xp.backends.skyrl.worker.engine_key import EngineClient
    from xp.worker.engines.key_check import EngineKeyCheck

    del cfg
    server = uvicorn.Server(
        uvicorn.Config(
            EngineKeyCheck(_nothing),
            host="0.0.0.0",
            port=0,
            log_level="error",
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    found = listeners(os.getpid())

    async def ask() -> list[int]:
        client = EngineClient(
            proxy_url=url, server_urls=[url], model_name="tiny", data_parallel_size=1
        )
        own = await client._call_all_servers("/collective_rpc", {"method": "x"})
        assert await client._post(f"{url}/inference/v1/generate", {}) == {}
        await client.teardown()
        return [one["status"] for one in own.values()]

    def send_weights() -> str:
        """The refusal of a weight update; empty: the engine took it."""
        try:
            SkyrlWeightSyncClient([url]).start_weight_update()
        except RuntimeError as error:
            return str(error)
        return ""

    refusals = [send_weights()]
    # As a worker gets it.
    pickle.loads(
        pickle.dumps(
            EngineClient(
                proxy_url=url,
                server_urls=[url],
                model_name="tiny",
                data_parallel_size=1,
            )
        )
    )
    refusals.append(send_weights())

    paths = (
        "/health",
        "/v1/models",
        "/collective_rpc",
        "/update_weights",
        "/inference/v1/generate",
    )
    asked = [
        httpx.post(url + path, headers=said, timeout=DEADLINE_S, trust_env=False)
        for path in paths
        for said in STRANGERS
    ]
    statuses = [*asyncio.run(ask()), *(one.status_code for one in asked)]
    server.should_exit = True
    thread.join()
    return statuses, refusals, found


STRANGERS: tuple[dict[str, str], ...] = (
    {},
    {"Authorization": "Bearer no"},
    {"Origin": "http://evil.example"},
)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await receive()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b"{}"})


def _records() -> Iterator[tuple[str, str]]:
    """Whatever Ray keeps or shows of a job: its tables, its context, its log files, its processes' command lines."""
    import psutil
    import ray
    from ray._private import state

    yield "the job table", str(state.jobs())
    yield "the actor table", str(state.actors())
    yield "the node table", str(ray.nodes())
    yield "the runtime environment", str(ray.get_runtime_context().runtime_env)
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    for file in session.rglob("*"):
        with suppress(FileNotFoundError):  # Ray removes some
            if file.is_file():
                yield file.name, file.read_text(errors="replace")
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ray" in line:
            yield f"the command line of {process.pid}", line
