"""SkyRL's engine servers; one that dies or hangs is started again, with the current weights.

SkyRL 0.3.0 neither restarts its servers nor sets a deadline for their answers. Here servers are polled while episodes
are played; a lost one is ended, and no further episode begins. Once the running episodes have ended, SkyRL's own code
starts its group of servers again and a new router, joins all servers and sends the weights, as it does before the
first step.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from xp.backends.skyrl.worker.kept_client import answers
from xp.backends.skyrl.worker.server_processes import Started, started_by
from xp.errors import ExitCode, XpError

T = TypeVar("T")

MAX_RESTARTS: Final = 3
"""Largest number of restarts in one stage; a more frequent fault would end the next engine too."""
POLL_S: Final = 2.0
PROBE_S: Final = 10.0
PATIENCE_S = 120.0
"""Seconds for which an engine may fail to answer while episodes are played."""


class KeptServers:
    """The servers of a run, their router and their client.

    Args:
        experiment: SkyRL's, which started them.
        client: SkyRL's; it is updated when a server gets another address.
    """

    def __init__(self, experiment: Any, client: Any) -> None:
        self._experiment, self._client = experiment, client
        self._groups: Sequence[Any] = experiment._server_groups or ()
        self._started: list[list[Started]] = [started_by(group.get_actors()) for group in self._groups]
        self._dispatch: Any = None
        self._fault = ""
        self._num_running = self._num_restarts = self._num_told = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed, self._restarting = asyncio.Condition(), asyncio.Lock()

    def join(self, dispatch: Any) -> None:
        """Restart lost servers from this call on; until then a loss ends the run, as always where prefill is separate.

        Args:
            dispatch: SkyRL's WorkerDispatch; it is idle while episodes are played.
        """
        if not self._groups or self._experiment.cfg.generator.inference_engine.enable_pd:
            return
        self._dispatch, self._send = dispatch, dispatch.save_weights_for_sampler

        async def save_weights_for_sampler(*args: Any, **more: Any) -> None:
            if not await self.restored():
                await self._send(*args, **more)

        dispatch.save_weights_for_sampler = save_weights_for_sampler

    def restarts(self) -> int:
        """Number of restarts since the last call."""
        number, self._num_told = self._num_restarts - self._num_told, self._num_restarts
        return number

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """Context of one episode, which begins when all servers are up and have the weights."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._fault)
            self._num_running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    async def played(self, batch: Coroutine[Any, Any, T]) -> T:
        """Play a batch while the servers are watched; all of them answer when it returns.

        Raises:
            XpError: (ENGINE) a server is lost and cannot be started again.
        """
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._changed, self._restarting = asyncio.Condition(), asyncio.Lock()
        playing, watch = asyncio.ensure_future(batch), asyncio.create_task(self._watch())
        try:
            await asyncio.wait({playing, watch}, return_when=asyncio.FIRST_COMPLETED)
            async with self._restarting:
                if watch.done():
                    watch.result()  # raises
            found = await playing
        finally:
            for task in (watch, playing):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        await self.restored()
        return found

    async def is_lost(self, fault: BaseException) -> bool:
        """Returns whether a server is lost, now that an engine failed to answer an episode."""
        if not self._fault and await self._silent(PROBE_S):
            await self._set_fault(f"an engine failed ({type(fault).__name__}: {fault})")
        return bool(self._fault)

    async def restored(self) -> bool:
        """Restart servers that do not answer, while no episode is played; returns whether there were any.

        All servers have the current weights afterwards. Raises XpError(ENGINE) if no server is left.
        """
        if self._dispatch is None:
            return False
        if not self._fault and await self._silent(PROBE_S) and (silent := await self._silent(PATIENCE_S)):
            await self._set_fault(f"the engine at {', '.join(silent)} did not answer between two rollouts")
        if not self._fault:
            return False
        await self._restart()
        return True

    async def _watch(self) -> None:
        """Ends hanging servers, and restarts lost ones once no episode is played; returns only by raising XpError."""
        answered: dict[str, float] = {}
        while True:
            await asyncio.sleep(POLL_S)
            silent, now = await self._silent(PROBE_S), time.monotonic()
            answered = {url: answered.get(url, now) if url in silent else now for url in self._client.server_urls}
            for url in silent:
                is_gone = not all(one.are_all_there() for one in self._processes(url))
                if is_gone or now - answered[url] > PATIENCE_S:
                    how = "has ended" if is_gone else f"did not answer for {PATIENCE_S:g} s and was stopped"
                    await self._set_fault(f"the engine at {url} {how}")
                    # Requests to it now fail instead of waiting for ever.
                    self._end(url)
            if self._fault:
                if self._dispatch is None:
                    raise XpError(self._fault, ExitCode.ENGINE)
                async with self._changed:
                    await self._changed.wait_for(lambda: not self._num_running)
                async with self._restarting:
                    await self._restart()
                answered = {}

    async def _restart(self) -> None:
        """Restart the groups of lost servers and send the weights to all; nothing else runs meanwhile."""
        if self._num_restarts >= MAX_RESTARTS:
            raise XpError(f"{self._fault} (after {MAX_RESTARTS} restarts)", ExitCode.ENGINE)
        self._num_restarts += 1
        warning = f"xp: warning: {self._fault}; restart {self._num_restarts} of {MAX_RESTARTS}"
        print(warning, file=sys.stderr, flush=True)
        silent = await self._silent(PROBE_S)
        self._make_room()
        await asyncio.to_thread(self._start_again, silent)
        client = self._client
        client._world_size = None
        if self._dispatch.colocate_all:
            await client.sleep()
        await asyncio.to_thread(self._dispatch.init_weight_sync_state, client)
        await self._send()
        async with self._changed:
            self._fault = ""
            self._changed.notify_all()

    def _make_room(self) -> None:
        """Frees a colocated training's memory, because a starting engine takes its share of the accelerator."""
        dispatch = self._dispatch
        for model, state in dispatch._gpu_state.items():
            if dispatch.colocate_all and (state.model_on_gpu or state.optimizer_on_gpu):
                dispatch._offload(model)

    def _start_again(self, silent: Sequence[str]) -> None:
        import ray
        from skyrl.backends.skyrl_train.inference_servers import setup, vllm_router

        experiment, client = self._experiment, self._client
        lost = [number for number, group in enumerate(self._groups) if set(group.get_server_urls()) & set(silent)]
        for number in lost:
            for one in self._started[number]:
                one.end()
            for actor in self._groups[number].get_actors():
                ray.kill(actor)
        ray.get([up for number in lost for up in self._groups[number].start(blocking=False)])
        for number in lost:
            self._started[number] = started_by(self._groups[number].get_actors())
        client.server_urls[:] = [url for group in self._groups for url in group.get_server_urls()]
        experiment._inference_router.shutdown()
        engine = experiment.cfg.generator.inference_engine
        arguments = setup.build_router_args(engine, server_urls=list(client.server_urls))
        experiment._inference_router = vllm_router.VLLMRouter(arguments, log_path=experiment.cfg.trainer.log_path)
        client.proxy_url = experiment._inference_router.start()

    async def _set_fault(self, fault: str) -> None:
        async with self._changed:
            self._fault = self._fault or fault
            self._changed.notify_all()

    async def _silent(self, timeout_s: float) -> list[str]:
        """Servers whose engine does not answer in this time."""
        urls = list(self._client.server_urls)
        found = await asyncio.gather(*(answers(self._client, url, timeout_s) for url in urls))
        return [url for url, answered in zip(urls, found, strict=True) if not answered]

    def _processes(self, url: str) -> Sequence[Started]:
        """Processes of a server; empty if this run did not start it."""
        for group, started in zip(self._groups, self._started, strict=True):
            if url in (urls := group.get_server_urls()):
                return started[urls.index(url) : urls.index(url) + 1]
        return ()

    def _end(self, url: str) -> None:
        for one in self._processes(url):
            one.end()
