"""Environments of the Open Reward Standard, in the catalog, at a URL or served by xp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from xp.envs import wire
from xp.envs.base import (
    EnvFault,
    Message,
    NotOffered,
    ProtocolError,
    ResponseLost,
    SessionLost,
    Task,
    ToolResult,
    ToolSpec,
)
from xp.envs.catalog import Catalog
from xp.envs.config import EnvConfig
from xp.envs.local_server import LocalServer, source_version
from xp.envs.loop import run
from xp.envs.picture_store import PictureStore, store_of
from xp.envs.process_bound import SLACK_S, ProcessBoundProvider, ServerCore, ServerSession
from xp.envs.target import Target, remote_target, served_target
from xp.envs.transport import Repeat, deadline_in

T = TypeVar("T")
PING_EVERY_S: Final = 10.0
CLOSE_S: Final = 10.0
MOST_MISSES: Final = 3
"""Pings in a row to which the server answers that it has no such session, until it is lost: a server that is moved or
restored knows its sessions again after a while. The SDK's client waits for five."""


class OpenRewardProvider(ProcessBoundProvider["OpenRewardCore"]):
    """See xp.envs.base.Provider.

    Args:
        config: the environment, with `target` or `serve`.
        environ: variables with the API key and the secrets.
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        super().__init__(config, environ, None if config.serve else remote_target(config, environ))

    @property
    def server(self) -> LocalServer | None:
        """The server that this provider has started for `serve`; None before the first request."""
        if isinstance(self._server, LocalServer):
            return self._server
        return None

    def version(self) -> str:
        if self._config.serve is not None:
            return source_version(self._config.serve)
        return self._ask(lambda catalog: catalog.version())

    def splits(self) -> tuple[str, ...]:
        return self._ask(lambda catalog: catalog.splits())

    def num_tasks(self, split: str) -> int:
        return self._ask(lambda catalog: catalog.num_tasks(split))

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """See xp.envs.base.Provider; raises ValueError for an index outside the split."""
        specs = self._ask(lambda catalog: catalog.specs(split, indices))
        return [
            Task(self._config.name, split, index, spec)
            for index, spec in zip(indices, specs, strict=True)
        ]

    def listed(self, split: str) -> list[Task] | None:
        """See xp.envs.base.Lister."""
        specs = self._ask(lambda catalog: catalog.listed(split))
        if specs is None:
            return None
        return [Task(self._config.name, split, index, spec) for index, spec in enumerate(specs)]

    def open(self, task: Task) -> OpenRewardSession:
        core = self._core()
        wire.check_index(task)
        return OpenRewardSession(core, self._in_slot(core, lambda: core.open(task)))

    def score_group(self, task: Task, dialogues: Sequence[Sequence[Message]]) -> list[float]:
        """See xp.envs.base.GroupScorer."""
        with closing(self.open(task)) as session:
            return session.score_group(dialogues)

    def _ask(self, question: Callable[[Catalog], Coroutine[Any, Any, T]]) -> T:
        core = self._core()
        return run(question(core.catalog), self._config.limits.create_timeout_s + SLACK_S)

    def _new_core(self, target: Target) -> OpenRewardCore:
        store = store_of(self._config.images, self._environ)
        return OpenRewardCore(target, self._config, store)

    def _start(self) -> tuple[LocalServer, Target]:
        server = self._serve()
        return server, served_target(server.url, server.key, self._config, self._environ)


class OpenRewardSession(ServerSession["OpenRewardCore"]):
    """See xp.envs.base.Session; opened by OpenRewardProvider.open."""

    def __init__(self, core: OpenRewardCore, live: LiveSession) -> None:
        super().__init__(core)
        self._live = live

    def prompt(self) -> list[Message]:
        return list(self._live.prompt)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._listing()[0]

    @property
    def takes_answer(self) -> bool:
        return self._listing()[1] is not None

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._run(
            self._core.call(self._live, name, arguments), self._core.limits.call_timeout_s
        )

    def answer(self, text: str) -> ToolResult:
        terminal = self._listing()[1]
        if terminal is None:
            raise ProtocolError("the environment has no terminal tool to take an answer")
        name, argument = terminal
        return self.call(name, {} if argument is None else {argument: text})

    def score_group(self, dialogues: Sequence[Sequence[Message]]) -> list[float]:
        """One score for each dialogue; reads them, and does not advance the session."""
        limits = self._core.limits
        work = self._core.score_group(self._live, dialogues)
        return self._run(work, limits.create_timeout_s + limits.call_timeout_s)

    def _listing(self) -> tuple[tuple[ToolSpec, ...], Terminal | None]:
        return self._run(self._core.tools(self._live), self._core.limits.create_timeout_s)

    async def _end(self) -> None:
        try:
            await self._core.close_soon(self._live)
        finally:
            self._core.slots.release()


Terminal = tuple[str, str | None]
"""Name and argument of an environment's terminal tool."""


@dataclass(eq=False)
class LiveSession:
    """One open session on the server."""

    sid: str
    env: str
    touched: float
    """Time of the session's last request, on the loop's clock."""
    prompt: list[Message] = field(default_factory=list)
    tools: tuple[tuple[ToolSpec, ...], Terminal | None] | None = None
    num_misses: int = 0
    """Pings in a row that the server answered with 404."""
    lost: str | None = None
    in_flight: asyncio.Task[Any] | None = None


class OpenRewardCore(ServerCore):
    """State of a provider in one process, with its sessions. Every coroutine runs on the process's loop and raises
    EnvFault only."""

    def __init__(self, target: Target, config: EnvConfig, pictures: PictureStore | None) -> None:
        super().__init__(target, config)
        self._pictures = pictures
        self._toolset = config.toolset
        self.catalog = Catalog(self.transport, self._borrowed, config)
        self._open: set[LiveSession] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._has_messages = True

    async def open(self, task: Task) -> LiveSession:
        """Creates a session and waits until its setup is complete, so that tools can be called at once.

        A creation without an answer may have executed; the next attempt creates another session.
        """
        env = await self.catalog.env()
        deadline = deadline_in(self.limits.create_timeout_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                live = await self._open_once(env, task, deadline)
                break
            except ResponseLost as fault:
                await self.transport.pause(Repeat.OPENING, fault, attempt, deadline)
        self._open.add(live)
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())
        return live

    async def _open_once(self, env: str, task: Task, deadline: float) -> LiveSession:
        progress: list[str] = []
        sid: str | None = None
        try:
            sid = await self.mint(deadline, progress, overrides=self.transport.target.overrides)
            body: dict[str, Any] = {"env_name": env}
            if task.spec:
                body["task_spec"] = dict(task.spec)
            else:
                body |= {"split": task.split, "index": task.index}
            if self._toolset is not None:
                body["toolset_name"] = self._toolset
            await self.transport.request(
                "POST",
                "/create",
                deadline=deadline,
                body=body,
                sid=sid,
                with_secrets=True,
                repeat=Repeat.CREATION,
            )
            live = LiveSession(sid, env, asyncio.get_running_loop().time())
            live.prompt = await self._prompt(live, deadline)
        except BaseException:
            for name in filter(None, {sid, *progress}):
                self._later(self._tear_down(name))
            raise
        return live

    async def mint(
        self,
        deadline: float,
        progress: list[str],
        repeat: Repeat = Repeat.OPENING,
        overrides: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Requests the id of a new, empty session."""
        body = {"env": dict(overrides)} if overrides else {}
        text = await self.transport.stream(
            "/create_session",
            deadline=deadline,
            body=body,
            with_secrets=True,
            progress=progress,
            repeat=repeat,
        )
        what = "POST /create_session"
        reply = wire.parse_json(text, what) if text else None
        names = [*progress[-1:], reply.get("sid") if isinstance(reply, dict) else None]
        name = wire.string(next(filter(None, reversed(names)), None), what)
        if not name.isprintable():
            raise ProtocolError(
                f"{what}: the session's id {name[:60]!r} cannot be sent in a header"
            )
        return name

    async def call(self, live: LiveSession, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        what = f"POST /{live.env}/call"
        body = {"name": name, "input": dict(arguments)}
        deadline = deadline_in(self.limits.call_timeout_s)
        work = self.transport.stream(
            f"/{live.env}/call", deadline=deadline, body=body, sid=live.sid, progress=[]
        )
        try:
            text = await self._guarded(live, work)
            return wire.tool_result(wire.parse_json(text, what), what, self._pictures)
        except EnvFault as fault:
            fault.args = (f"tool {name}: {fault}",)
            raise

    async def tools(self, live: LiveSession) -> tuple[tuple[ToolSpec, ...], Terminal | None]:
        if live.tools is None:
            live.tools = wire.tools(*await self._listed(live))
        return live.tools

    async def score_group(
        self, live: LiveSession, dialogues: Sequence[Sequence[Message]]
    ) -> list[float]:
        listing, path = await self._listed(live)
        if wire.mapping(listing, path).get("supports_score_group") is not True:
            raise NotOffered(
                f"{live.env} scores no groups (score_group); set env.group_score_weight=null"
            )
        is_rich = "tool_call" in (listing.get("message_block_types") or ())
        what = f"POST /{live.env}/score_group"
        body = {
            "candidates": [
                {"messages": wire.blocks(dialogue, is_rich=is_rich, store=self._pictures)}
                for dialogue in dialogues
            ]
        }
        deadline = deadline_in(self.limits.call_timeout_s)
        work = self.transport.stream(
            f"/{live.env}/score_group", deadline=deadline, body=body, sid=live.sid, progress=[]
        )
        return wire.scores(
            wire.parse_json(await self._guarded(live, work), what), len(dialogues), what
        )

    async def _listed(self, live: LiveSession) -> tuple[Any, str]:
        """The answer of `/task_tools`, and its path."""
        deadline = deadline_in(self.limits.create_timeout_s)
        path = f"/{live.env}/task_tools"
        body = await self._guarded(live, self._get(live, path, deadline))
        return wire.parse_json(body, path), path

    async def _get(self, live: LiveSession, path: str, deadline: float) -> bytes:
        return await self.transport.request(
            "GET", path, deadline=deadline, sid=live.sid, repeat=Repeat.OPENING
        )

    def close_soon(self, live: LiveSession) -> asyncio.Task[None]:
        """Ends the session on the server in the background."""
        self._open.discard(live)
        live.lost = live.lost or "it is closed"
        return self._later(self._tear_down(live.sid))

    async def close(self) -> None:
        """Closes all sessions, waits for the server's answers, and closes the connection."""
        for live in list(self._open):
            self.close_soon(live)
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        if self._closing:
            await asyncio.wait(self._closing, timeout=2 * CLOSE_S)
        await self.transport.close()

    @asynccontextmanager
    async def _borrowed(self, deadline: float) -> AsyncIterator[str | None]:
        """Yields a session's id for requests to the catalog, which routes by it; None for other servers."""
        if self.transport.target.deployment is None:
            yield None
            return
        sid = await self.mint(deadline, [], Repeat.QUESTION)
        try:
            yield sid
        finally:
            self._later(self._tear_down(sid))

    async def _prompt(self, live: LiveSession, deadline: float) -> list[Message]:
        if self._has_messages:
            path = f"/{live.env}/messages"
            with suppress(SessionLost):
                body = await self._get(live, path, deadline)
                return wire.messages(wire.parse_json(body, path), path, self._pictures)
        # Servers before 0.1.157 have no /messages; if the session is lost instead, this request fails with that.
        path = f"/{live.env}/prompt"
        body = await self._get(live, path, deadline)
        self._has_messages = False
        return wire.prompt(wire.parse_json(body, path), path, self._pictures)

    async def _guarded(self, live: LiveSession, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the session; stops when the keep-alive task finds that the server has lost it."""
        if live.lost is not None:
            work.close()
            raise SessionLost(f"session on {self.transport.target.url}: {live.lost}")
        live.touched = asyncio.get_running_loop().time()
        live.in_flight = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if live.lost is None:
                raise
            raise SessionLost(f"session on {self.transport.target.url}: {live.lost}") from None
        except SessionLost as fault:
            live.lost = str(fault)
            raise
        finally:
            live.in_flight = None

    async def _keep_alive(self) -> None:
        """Pings idle sessions; a session that the server has lost ends its current call."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_EVERY_S / 4)
            stale = [
                live
                for live in self._open
                if loop.time() - live.touched >= PING_EVERY_S and live.lost is None
            ]
            for live in stale:
                live.touched = loop.time()
                self._later(self._ping(live))

    async def _ping(self, live: LiveSession) -> None:
        deadline = deadline_in(PING_EVERY_S)
        try:
            await self.transport.request(
                "POST", "/ping", deadline=deadline, sid=live.sid, repeat=Repeat.NOTICE
            )
            live.num_misses = 0
        except SessionLost as fault:
            live.num_misses += 1
            if live.num_misses < MOST_MISSES:
                live.touched -= (
                    0.75 * PING_EVERY_S
                )  # the next one is soon: a loss is noticed within 15 s
                return
            live.lost = live.lost or str(fault)
            if live.in_flight is not None:
                live.in_flight.cancel()
        except EnvFault:
            pass  # The next call reports an outage, if it is not over by then.

    async def _tear_down(self, sid: str) -> None:
        deadline = deadline_in(CLOSE_S)
        for path in ("/delete", "/delete_session"):
            with suppress(EnvFault):
                await self.transport.request(
                    "POST", path, deadline=deadline, sid=sid, repeat=Repeat.NOTICE
                )

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task
