"""Servers of SkyRL that are lost and started again, on small HTTP servers in their place (tests/engines has vLLM's)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("skyrl", reason="SkyRL's own code: make test-skyrl")

import aiohttp
from aiohttp import web

import tests.trainers.skyrl_parts  # noqa: F401 - it makes SkyRL importable
from xp.backends.skyrl.worker import kept_client, kept_servers
from xp.backends.skyrl.worker.kept_client import PROBE, is_engines
from xp.backends.skyrl.worker.kept_servers import KeptServers
from xp.errors import ExitCode, XpError


class Engine:
    """A server whose engine answers until it is lost; its processes are itself."""

    at: ClassVar[dict[str, Engine]] = {}
    """The engine of each address."""

    def __init__(self) -> None:
        self.runs, self.hangs = True, False
        self.url = ""

    @property
    def is_well(self) -> bool:
        return self.runs and not self.hangs

    def are_all_there(self) -> bool:
        return self.runs

    def end(self) -> None:
        self.runs = False

    async def answer(self, request: web.Request) -> web.Response:
        while self.hangs and self.runs:
            await asyncio.sleep(0.01)
        if not self.runs:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({})


class Servers(KeptServers):
    """SkyRL's servers, each an Engine."""

    def __init__(self, engines: list[Engine], client: Any, start: Callable[[], Awaitable[Engine]]) -> None:
        groups = [
            SimpleNamespace(get_actors=list, get_server_urls=lambda n=n: [engines[n].url]) for n in range(len(engines))
        ]
        inference = SimpleNamespace(enable_pd=False)
        cfg = SimpleNamespace(generator=SimpleNamespace(inference_engine=inference))
        super().__init__(SimpleNamespace(_server_groups=groups, cfg=cfg), client)
        self._started = [[engine] for engine in engines]  # type: ignore[list-item]
        self._engines, self._start = engines, start
        self.is_playing = 0

    async def _restart(self) -> None:
        assert self.is_playing == 0
        self._silent_ones = [engine.url for engine in self._engines if not engine.runs]
        for number, engine in enumerate(self._engines):
            if not engine.runs:
                self._engines[number] = await self._start()
                self._started[number] = [self._engines[number]]  # type: ignore[list-item]
        self._client.server_urls[:] = [engine.url for engine in self._engines]
        await super()._restart()

    def _start_again(self, silent: Any) -> None:
        """Done above, in the loop that serves."""
        assert silent == []


class Sending:
    """SkyRL's WorkerDispatch, as far as the servers need it."""

    colocate_all = False

    def __init__(self) -> None:
        self._gpu_state: dict[str, Any] = {}
        self.told: list[str] = []

    def init_weight_sync_state(self, client: Any) -> None:
        self.told.append(f"joined {len(client.server_urls)}")

    async def save_weights_for_sampler(self) -> None:
        self.told.append("sent")


@asynccontextmanager
async def servers(number: int = 1) -> AsyncIterator[tuple[Servers, list[Engine], Sending]]:
    engines: list[Engine] = []
    runners = []

    async def start() -> Engine:
        engine, app = Engine(), web.Application()
        app.router.add_route("*", "/{path:.*}", engine.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        assert site._server is not None
        engine.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        Engine.at[engine.url] = engine
        return engine

    engines += [await start() for _ in range(number)]
    async with aiohttp.ClientSession() as session:

        async def own_session() -> aiohttp.ClientSession:
            return session

        client = SimpleNamespace(server_urls=[one.url for one in engines], _get_session=own_session, _world_size=(1, 1))
        kept, dispatch = Servers(engines, client, start), Sending()
        try:
            yield kept, engines, dispatch
        finally:
            for engine in engines:
                engine.end()
            for runner in runners:
                await runner.cleanup()


async def episode(kept: Servers, places: asyncio.Semaphore, lose: Callable[[], None] | None = None) -> str:
    """One turn; `lost` where its engine was."""
    async with places, kept.episode():
        kept.is_playing += 1
        try:
            if lose is not None:
                lose()
            session = await kept._client._get_session()
            async with session.get(kept._client.server_urls[0] + "/turn"):
                return "played"
        except aiohttp.ClientError as error:
            return "lost" if is_engines(error) and await kept.is_lost(error) else "failed"
        finally:
            kept.is_playing -= 1


async def answers(client: Any, url: str, timeout_s: float) -> bool:
    """As xp's own, but a busy machine makes no engine silent: one that neither hangs nor is lost is asked again."""
    while not await kept_client.answers(client, url, timeout_s):
        if not Engine.at[url].is_well:
            return False
    return True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("POLL_S", 0.05), ("PROBE_S", 0.3), ("PATIENCE_S", 1.0), ("answers", answers)):
        monkeypatch.setattr(kept_servers, name, value)
    monkeypatch.setattr(kept_servers, "started_by", lambda _: [])


@pytest.mark.parametrize("how", ["dies", "hangs"])
def test_what_waits_is_played_by_the_server_that_is_started_again(how: str) -> None:
    async def run() -> None:
        async with servers() as (kept, engines, dispatch):
            kept.join(dispatch)
            await dispatch.save_weights_for_sampler()
            first, places = engines[0], asyncio.Semaphore(1)

            def lose() -> None:
                first.hangs, first.runs = how == "hangs", how == "hangs"

            async def batch() -> list[str]:
                return await asyncio.gather(episode(kept, places, lose), episode(kept, places), episode(kept, places))

            assert await kept.played(batch()) == ["lost", "played", "played"]
            assert (kept.restarts(), kept.restarts()) == (1, 0)
            assert engines[0] is not first
            assert dispatch.told == ["sent", "joined 1", "sent"]

    asyncio.run(run())


def test_a_server_that_is_lost_between_two_rollouts_is_back_before_weights_are_sent_once() -> None:
    async def run() -> None:
        async with servers(2) as (kept, engines, dispatch):
            kept.join(dispatch)
            engines[1].end()
            await dispatch.save_weights_for_sampler()
            assert kept.restarts() == 1
            assert dispatch.told == ["joined 2", "sent"]

    asyncio.run(run())


def test_the_fourth_loss_ends_the_stage() -> None:
    async def run() -> None:
        async with servers() as (kept, engines, dispatch):
            kept.join(dispatch)
            for _ in range(3):
                engines[0].end()
                assert await kept.restored()
            engines[0].end()
            with pytest.raises(XpError, match=r"did not answer between two rollouts \(after 3 restarts\)") as ended:
                await kept.restored()
            assert ended.value.code == ExitCode.ENGINE

    asyncio.run(run())


def test_a_server_that_hangs_in_an_evaluation_ends_its_stage_at_the_deadline() -> None:
    async def run() -> None:
        async with servers() as (kept, engines, _):
            engines[0].hangs = True
            with pytest.raises(XpError, match=r"did not answer for 1 s and was stopped") as ended:
                await kept.played(episode(kept, asyncio.Semaphore(1)))
            assert ended.value.code == ExitCode.ENGINE
            assert kept.is_playing == 0

    asyncio.run(run())


def test_a_request_that_fails_while_all_engines_answer_is_no_lost_engine() -> None:
    async def run() -> None:
        async with servers() as (kept, _, dispatch):
            kept.join(dispatch)
            assert not await kept.is_lost(RuntimeError("refused"))
            assert not await kept.restored()
            assert dispatch.told == []

    asyncio.run(run())
    info: Any = SimpleNamespace(real_url=PROBE)
    refused = [aiohttp.ClientResponseError(info, (), status=status) for status in (400, 422, 500, 503)]
    assert [is_engines(one) for one in refused] == [False, False, True, True]
