"""OpenEnv environments at a URL, served by xp or in a container; a task is a row with a reset seed, a step a call."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiohttp

from xp.envs import wire
from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    Message,
    Picture,
    ProtocolError,
    ResponseLost,
    SessionLost,
    Task,
    ToolCrashed,
    ToolResult,
    ToolSpec,
)
from xp.envs.config import EnvConfig
from xp.envs.docker import ImageServer
from xp.envs.indexed import IndexedProvider
from xp.envs.local_server import source_version
from xp.envs.loop import run
from xp.envs.messages import ReadPicture
from xp.envs.picture_store import PictureStore, kept, store_of
from xp.envs.pictures import joined, separated, with_each_text
from xp.envs.process_bound import (
    SLACK_S,
    ProcessBoundProvider,
    ServerCore,
    ServerHandle,
    ServerSession,
)
from xp.envs.retry import AtCapacity
from xp.envs.rows import load_rows, messages_of, picture_paths, reader_of
from xp.envs.target import Target, openenv_target, origin
from xp.envs.transport import Repeat, deadline_in, raise_for_status, translated, until
from xp.errors import XpError
from xp.lib.data_files import Row, value_at
from xp.lib.digest import digest_of
from xp.lib.text import counted

STEP: Final = "step"
MCP_FIELDS: Final = frozenset({"tool_name", "arguments"})
"""Properties of the action of an environment whose actions are calls of MCP tools."""
TRANSPORT_ERROR: Final = "transport_error"
"""The error type of a failed MCP call that is not the model's fault; a tool's own exception is `execution_error`."""
SCHEMA: Final = "GET /schema"
MAX_ERROR_CHARS: Final = 500
_log = logging.getLogger(__name__)


def step_tool(schema: Any) -> ToolSpec | None:
    """The one tool of an environment with an action model; None if its actions are calls of MCP tools."""
    action = wire.mapping(wire.mapping(schema, SCHEMA).get("action"), f"{SCHEMA}: action")
    properties = wire.mapping(action.get("properties", {}), f"{SCHEMA}: action.properties")
    if properties.keys() >= MCP_FIELDS:
        return None
    parameters = {
        name: value for name, value in action.items() if name not in ("title", "description")
    }
    parameters |= {
        "type": "object",
        "properties": {k: v for k, v in properties.items() if k != "metadata"},
    }
    return ToolSpec(STEP, str(action.get("description", "Act in the environment.")), parameters)


def mcp_tools(reply: Mapping[str, Any], what: str) -> tuple[ToolSpec, ...]:
    """Tools in the answer of `tools/list`."""
    result = wire.mapping(reply.get("result"), f"{what}: result")
    tools = result.get("tools")
    return wire.tool_specs([] if tools is None else tools, what)


def observed(reply: Mapping[str, Any], what: str, store: PictureStore | None = None) -> ToolResult:
    """Text, pictures, reward and end from a step's observation.

    Args:
        reply: the answer.
        what: its name in messages.
        store: keeps the pictures. None means that a picture is refused.
    """
    observation = wire.mapping(reply.get("observation"), f"{what}: observation")
    is_done = reply.get("done", False)
    reward = wire.reward_of(reply.get("reward"), what)
    if not isinstance(is_done, bool):
        wire.refuse(what, "done", is_done)
    error = observation.get("error")
    if isinstance(error, Mapping) and "error_type" in error:
        message = str(error.get("message"))
        if error["error_type"] == TRANSPORT_ERROR:
            raise ToolCrashed(f"{what}: {message[:MAX_ERROR_CHARS]}")
        return ToolResult(message, reward, is_done, is_call_error=True)
    text, pictures = joined(parts_of_observation(observation, what, store, is_result=True))
    return ToolResult(text, reward, is_done, pictures=tuple(pictures))


def parts_of_observation(
    observation: Mapping[str, Any],
    what: str,
    store: PictureStore | None = None,
    *,
    is_result: bool = False,
) -> list[str | Picture]:
    """Parts for the model: the observation's only text, the blocks of an MCP result, or else the fields as JSON.

    With a store, fields that are data URIs of pictures are pictures behind the text.

    Args:
        observation: the observation.
        what: name of the answer in messages.
        store: keeps the pictures. None means that a picture is refused.
        is_result: whether a text stands for a damaged picture, else refused.
    """
    fields = {
        name: value
        for name, value in observation.items()
        if name != "metadata" and value is not None
    }
    if fields.keys() >= {"tool_name", "result"}:
        return _mcp_parts(fields["result"], what, store, is_result=is_result)
    shown: list[str | Picture] = []
    if store is not None:
        for name, value in list(fields.items()):
            if isinstance(value, str) and value.startswith(PICTURE_URI):
                shown.append(kept(value.partition(",")[2], store, is_result=is_result))
                del fields[name]
    match list(fields.values()):
        case [] if shown:
            return shown
        case [str(text)]:
            return [text, *shown]
    return [json.dumps(fields, ensure_ascii=False), *shown]


PICTURE_URI: Final = "data:image/"


def refusal(error: Any, what: str) -> ToolResult:
    """Result for an answer of type `error` that is the model's fault; raises EnvFault for any other error."""
    detail = wire.mapping(error, what)
    code = detail.get("code")
    message = str(detail.get("message"))[:MAX_ERROR_CHARS]
    if code == "VALIDATION_ERROR":
        # Whatever the form of the server's errors, the model is at fault, and gets the message.
        errors = []
        for entry in _list(detail.get("errors")):
            if isinstance(entry, Mapping):
                place = ".".join(map(str, _list(entry.get("loc"))))
                errors.append(f"{place}: {entry.get('msg')}")
        return ToolResult(f"{message}: {'; '.join(errors)[:MAX_ERROR_CHARS]}", is_call_error=True)
    if code == "CAPACITY_REACHED":
        raise AtCapacity(f"{what}: {message}", detail.get("max_sessions"))
    if code in ("EXECUTION_ERROR", "FACTORY_ERROR"):
        raise ToolCrashed(f"{what}: {message}")
    raise ProtocolError(f"{what}: {code} {message}")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mcp_parts(
    result: Any, what: str, store: PictureStore | None, *, is_result: bool
) -> list[str | Picture]:
    if not (isinstance(result, Mapping) and isinstance(result.get("content"), list)):
        return [result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)]
    blocks = [_block_part(block, what, store, is_result=is_result) for block in result["content"]]
    return list(separated(([part] for part in blocks), "\n"))


def _block_part(
    value: Any, what: str, store: PictureStore | None, *, is_result: bool
) -> str | Picture:
    """A picture, or the text of a block or of its embedded resource; raises ProtocolError for another file."""
    block = wire.mapping(value, what)
    if block.get("type") == "image" and store is not None:
        return wire.block_parts([block], what, store, is_result=is_result)[0]
    resource = block.get("resource")
    text = (resource if isinstance(resource, Mapping) else block).get("text")
    if not isinstance(text, str):
        raise ProtocolError(
            f"{what}: a block of type {str(block.get('type'))[:40]}: xp gives a model text alone, and images with"
            " model.images=true"
        )
    return text


CLOSE_S: Final = 5.0
_ENDS: Final = (
    aiohttp.WSMsgType.CLOSE,
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
)


def client_of(target: Target) -> aiohttp.ClientSession:
    """HTTP client of one server, without redirects."""

    async def refuse(
        _session: Any, _context: Any, seen: aiohttp.TraceRequestRedirectParams
    ) -> None:
        seen.response.close()
        await raise_for_status(seen.response, f"{seen.method} /ws", False, target.url)

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)  # ws_connect has no allow_redirects
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=not target.is_loopback,
        trace_configs=[trace],
        headers=dict(target.headers),
    )


async def connect(client: aiohttp.ClientSession, target: Target, deadline: float) -> Socket:
    """Opens a new session; raises EnvFault."""
    what = f"{target.url}/ws"
    async with until(deadline, f"{what}: no connection"):
        with translated(what):
            connection = await client.ws_connect(what, max_msg_size=0, compress=0)
    return Socket(connection, what)


class Socket:
    """An open session. Every coroutine runs on the process's loop and raises EnvFault only.

    Frames are read continuously, since reading answers the server's pings. A request without an answer in time ends the
    session, since its late answer would be taken for the next request's.
    """

    def __init__(self, connection: aiohttp.ClientWebSocketResponse, what: str) -> None:
        self._connection = connection
        self._what = what
        self._answer: asyncio.Future[str | None] | None = None
        """The answer to the latest request. None means that the connection has ended."""
        self._lost: str | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(self, kind: str, data: Mapping[str, Any], deadline: float) -> tuple[str, Any]:
        """Sends one message and waits for its answer; returns type and data.

        Args:
            deadline: end of the wait, on the loop's clock.
        """
        if self._lost is not None:
            raise SessionLost(f"{self._what}: {self._lost}")
        try:
            async with asyncio.timeout_at(deadline):
                text = await self._exchange(kind, data)
        except TimeoutError:
            self._give_up("an earlier call was not answered in time")
            raise DeadlineExceeded(f"{self._what}: no answer to {kind} in time") from None
        except BaseException:
            self._give_up("an earlier call was cut off")
            raise
        reply = wire.parse_json(text, self._what)
        if not isinstance(reply, Mapping) or not isinstance(reply.get("type"), str):
            raise ProtocolError(f"{self._what}: the answer to {kind} has no type")
        return reply["type"], reply.get("data")

    async def close(self) -> None:
        """Closes the session on the server, if it still answers."""
        self._lost = self._lost or "it is closed"
        self._reader.cancel()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self._connection.send_str('{"type": "close"}')
                await self._connection.close()

    async def _exchange(self, kind: str, data: Mapping[str, Any]) -> str:
        try:
            message = json.dumps(
                {"type": kind, "data": dict(data)}, ensure_ascii=False, allow_nan=False
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise ProtocolError(
                f"{self._what}: {kind} cannot be written as JSON ({type(error).__name__})"
            ) from None
        self._answer = asyncio.get_running_loop().create_future()
        with suppress(aiohttp.ClientError, ConnectionError):
            # A server that refuses the session sends the reason before it closes the connection.
            await self._connection.send_str(message)
        answer = await self._answer
        if answer is None:
            raise ResponseLost(f"{self._what}: the connection ended before the answer to {kind}")
        return answer

    async def _read(self) -> None:
        while True:
            try:
                message = await self._connection.receive()
            except (aiohttp.ClientError, ConnectionError):
                break
            if message.type in _ENDS:
                break
            if (
                message.type is aiohttp.WSMsgType.TEXT
                and self._answer is not None
                and not self._answer.done()
            ):
                self._answer.set_result(message.data)
        if self._answer is None or self._answer.done():
            self._lost = self._lost or "the connection has ended"
        else:
            self._answer.set_result(None)

    def _give_up(self, why: str) -> None:
        self._lost = self._lost or why
        ending = asyncio.get_running_loop().create_task(self.close())
        _closing.add(ending)
        ending.add_done_callback(_closing.discard)


_closing: set[asyncio.Task[None]] = set()
"""References to background tasks, which would be garbage-collected otherwise."""


class OpenEnvCore(ServerCore):
    """State of a provider in one process; coroutines run on the process's loop and raise EnvFault only."""

    def __init__(self, target: Target, config: EnvConfig, pictures: PictureStore | None) -> None:
        super().__init__(target, config)
        self._pictures = pictures
        self._where = origin(target.url)
        self._schema: Any = None
        self._mcp_tools: tuple[ToolSpec, ...] | None = None
        self._client: Any = None
        self._open: set[Socket] = set()

    async def schema(self) -> Any:
        if self._schema is None:
            deadline = deadline_in(self.limits.create_timeout_s)
            body = await self.transport.request(
                "GET", "/schema", deadline=deadline, repeat=Repeat.QUESTION
            )
            self._schema = wire.parse_json(body, "GET /schema")
        return self._schema

    async def open(self, reset: Mapping[str, Any], show: Show) -> tuple[Socket, list[Message]]:
        """Opens a session and resets it; returns it with its first messages.

        A session is its connection, so that a failed one leaves nothing on the server.

        Args:
            show: makes the messages from the answer to the reset.
        """
        deadline = deadline_in(self.limits.create_timeout_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._open_once(reset, deadline, show)
            except EnvFault as fault:
                if isinstance(fault, AtCapacity) and self._is_beyond(fault.max_sessions):
                    raise
                await self.transport.pause(Repeat.OPENING, fault, attempt, deadline)

    def _is_beyond(self, most: Any) -> bool:
        """Lowers the limit to the server's; returns whether more sessions than that are open or being opened here."""
        if isinstance(most, int) and 0 < most < self.slots.limit:
            what = f"{self._where} holds {counted(most, 'session')} at a time"
            _log.warning("%s; xp opens no more (env.limits.max_sessions)", what)
            self.slots.limit = most
        return self.slots.num_taken > self.slots.limit

    async def _open_once(
        self, reset: Mapping[str, Any], deadline: float, show: Show
    ) -> tuple[Socket, list[Message]]:
        self.transport.check_open()
        if self._client is None:
            self._client = client_of(self.transport.target)
        socket = await connect(self._client, self.transport.target, deadline)
        try:
            kind, data = await socket.ask("reset", reset, deadline)
            # The reward of a reset counts for nothing, so a NaN there is no fault.
            seen = self._result(
                (kind, {**data, "reward": None} if isinstance(data, Mapping) else data), "reset"
            )
            if seen.is_call_error:
                raise ProtocolError(f"reset on {self._where}: {seen.text}")
            if seen.finished:
                raise ProtocolError(
                    f"reset on {self._where}: it answers done: true, so that the episode has no turn"
                )
            prompt = show(data)
        except BaseException:
            await socket.close()
            raise
        self._open.add(socket)
        return socket, prompt

    async def tools(self, socket: Socket) -> tuple[ToolSpec, ...]:
        """The action model as one tool, or the environment's MCP tools."""
        step = step_tool(await self.schema())
        if step is not None:
            return (step,)
        if self._mcp_tools is None:
            deadline = deadline_in(self.limits.create_timeout_s)
            question = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            kind, data = await socket.ask("mcp", question, deadline)
            if kind != "mcp" or not isinstance(data, Mapping):
                raise ProtocolError(f"tools/list on {self._where}: an answer of type {kind!r}")
            self._mcp_tools = mcp_tools(data, "tools/list")
        return self._mcp_tools

    async def call(self, socket: Socket, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if step_tool(await self.schema()) is None:
            # The environment answers, and may score, a call of a tool that it lacks.
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        elif name == STEP:
            action = dict(arguments)
        else:
            return ToolResult(f"{name!r} is no tool here, only {STEP}", is_call_error=True)
        deadline = deadline_in(self.limits.call_timeout_s)
        return self._result(await socket.ask("step", action, deadline), f"step {name}")

    async def end(self, socket: Socket) -> None:
        self._open.discard(socket)
        try:
            await socket.close()
        finally:
            self.slots.release()

    async def close(self) -> None:
        await self.transport.close()  # First, so that no session is opened meanwhile.
        await asyncio.gather(
            *(socket.close() for socket in list(self._open)), return_exceptions=True
        )
        if self._client is not None:
            await self._client.close()

    def _result(self, answer: tuple[str, Any], what: str) -> ToolResult:
        kind, data = answer
        what = f"{what} on {self._where}"
        if kind == "error":
            return refusal(data, what)
        if kind != "observation" or not isinstance(data, Mapping):
            raise ProtocolError(f"{what}: an answer of type {kind!r}")
        return observed(data, what, self._pictures)


Show = Callable[[Mapping[str, Any]], list[Message]]
PLACEHOLDER: Final = re.compile(r"\{(observation|metadata(?:\.\w+)*)\}")
"""Placeholder in a row's prompt for the observation after the reset, for its metadata, or for an entry of them."""
RESET: Final = "reset"
"""Column of a row with the reset's arguments other than the seed."""


class OpenEnvProvider(IndexedProvider, ProcessBoundProvider[OpenEnvCore]):
    """See xp.envs.base.Provider.

    Args:
        config: the environment: `target`, `serve` or `image`, and the tasks in `rows`.
        environ: variables with a token for the server; variables of a server that xp starts.
    """

    kind = "openenv"

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        if config.rows is None:
            raise XpError(
                f"environment {config.name}: an OpenEnv environment needs rows, the prompts of its tasks"
            )
        target = openenv_target(config, environ) if config.target else None
        super().__init__(config, environ, target)
        has_pictures = config.images is not None
        self._rows, _ = load_rows(config.rows, config.columns, has_pictures=has_pictures)

    def version(self) -> str:
        content = {split: list(map(dict, rows)) for split, rows in self._rows.items()}
        rows = digest_of(content)[:16]
        if self._config.serve is not None:
            return f"{source_version(self._config.serve)}, rows {rows}"
        schema = run(self._core().schema(), self._config.limits.create_timeout_s + SLACK_S)
        return f"schema {digest_of(schema)[:16]}, rows {rows}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def open(self, task: Task) -> OpenEnvSession:
        self._check(task)
        core = self._core()
        spec = self._spec(task.split, task.index)
        read = reader_of(self._config.images, self._config.rows, self._environ)
        store = store_of(self._config.images, self._environ)
        where = f"environment {self._config.name}: task {task.id}"
        show = partial(opening, spec["row"], where, read=read, store=store)
        return OpenEnvSession(core, *self._in_slot(core, lambda: core.open(spec[RESET], show)))

    def picture_paths(self, task: Task) -> list[str]:
        """See xp.envs.base.PictureNamer."""
        return picture_paths(self._rows[task.split][task.index // self._config.num_seeds])

    def _size(self, split: str) -> int:
        return len(self._rows[split]) * self._config.num_seeds

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        return [self._spec(split, index) for index in indices]

    def _spec(self, split: str, index: int) -> dict[str, Any]:
        """Spec of a task: the row, and its reset's arguments. The seeds of a row are consecutive tasks."""
        number, seed = divmod(index, self._config.num_seeds)
        row = dict(self._rows[split][number])
        return {"row": row, RESET: {"seed": seed, **(row.get(RESET) or {})}}

    def _new_core(self, target: Target) -> OpenEnvCore:
        return OpenEnvCore(target, self._config, store_of(self._config.images, self._environ))

    def _start(self) -> tuple[ServerHandle, Target]:
        config = self._config
        if config.image is not None:
            container = ImageServer(
                config.image, config.limits.create_timeout_s, config.limits.memory_gb
            )
            container.start()
            return container, Target(container.url, None, {}, {})
        server = self._serve()
        return server, Target(server.url, None, {"X-API-Key": server.key}, {})


def opening(
    row: Row,
    where: str,
    reply: Mapping[str, Any],
    *,
    read: ReadPicture | None = None,
    store: PictureStore | None = None,
) -> list[Message]:
    """The row's prompt, with what the reset observed instead of its placeholders.

    Args:
        where: beginning of messages.
        reply: answer to the reset.
        read: reads the pictures of the row. None means that there are none.
        store: keeps those of the observation. None means that they are refused.

    Raises:
        XpError: the metadata lacks an entry, or the prompt shows nothing and the row does not set its task itself.
    """
    observation = reply["observation"]
    messages = messages_of(row, read)
    metadata = wire.mapping(
        observation.get("metadata") or reply.get("metadata") or {}, f"{where}: metadata"
    )
    fields = [
        name
        for name, value in observation.items()
        if name != "metadata" and value not in (None, "", [], {})
    ]
    known = f"its observation has {', '.join(fields) or 'nothing'}, its metadata {', '.join(metadata) or 'nothing'}"

    def shown(placeholder: re.Match[str]) -> list[str | Picture]:
        if placeholder[1] == "observation":
            content = observation if fields or not metadata else metadata
            return parts_of_observation(content, where, store)
        value = value_at({"metadata": metadata}, placeholder[1])
        if value is None:
            raise XpError(
                f"{where}: the reset gave nothing for {placeholder[0]}: {known[:MAX_ERROR_CHARS]}"
            )
        if isinstance(value, str):
            return [value]
        return [json.dumps(value, ensure_ascii=False)]

    is_shown = any(PLACEHOLDER.search(message["content"]) for message in messages)
    if (fields or metadata) and row.get(RESET) is None and not is_shown:
        raise XpError(
            f"{where}: the prompt shows nothing of what the reset observed: {known[:MAX_ERROR_CHARS]}\n"
            "write {observation}, {metadata} or {metadata.NAME} into the prompt; a row that sets its task itself has"
            ' the column reset ("reset": {})'
        )

    def filled(text: str) -> Iterator[str | Picture]:
        end = 0
        for placeholder in PLACEHOLDER.finditer(text):
            yield text[end : placeholder.start()]
            yield from shown(placeholder)
            end = placeholder.end()
        yield text[end:]

    return [with_each_text(message, filled) for message in messages]


class OpenEnvSession(ServerSession[OpenEnvCore]):
    """See xp.envs.base.Session; opened by OpenEnvProvider.open."""

    takes_answer = False

    def __init__(self, core: OpenEnvCore, socket: Socket, prompt: list[Message]) -> None:
        super().__init__(core)
        self._socket = socket
        self._prompt = prompt

    def prompt(self) -> list[Message]:
        return list(self._prompt)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self._run(self._core.tools(self._socket), self._core.limits.create_timeout_s)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return self._run(
            self._core.call(self._socket, name, arguments), self._core.limits.call_timeout_s
        )

    def answer(self, text: str) -> ToolResult:
        raise ProtocolError("an OpenEnv environment takes no plain answer")

    async def _end(self) -> None:
        await self._core.end(self._socket)
