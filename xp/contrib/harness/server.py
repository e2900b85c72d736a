"""The endpoint of programs: one server per process, and a key for each episode that attributes its requests."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from aiohttp import web

from xp.contrib.conversation import ModelRequest
from xp.contrib.harness import anthropic_wire, chat_wire, responses_wire
from xp.contrib.harness.request import ProgramRequest, RefusedRequest, RequestPictures
from xp.contrib.harness.tool_server import ToolServer
from xp.envs.base import EnvUnavailable, Message, ModelMessage
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of

WIRES: Final = {wire.PATH: wire for wire in (chat_wire, responses_wire, anthropic_wire)}
MODEL_REQUEST: Final = re.compile(
    r"/(chat|completions|responses|compact|messages|embeddings|generate|rerank)$"
    r"|:(stream)?generateContent$"
)
"""Path of a request for a model's output, in any vendor's API; what else a client sends changes no episode."""
MODEL: Final = "policy"
PING_S: Final = 5.0
"""Seconds between two comments of a stream without an answer, so that clients and proxies keep it open."""
MOST_BYTES: Final = 64 << 20
POLICY: Final = {
    "id": MODEL,
    "object": "model",
    "type": "model",
    "display_name": MODEL,
    "owned_by": "xp",
}
"""The policy in a list of models, as OpenAI and Anthropic have it."""
LIMIT: Final = ModelMessage(
    Message(role="assistant", content="The limit of this episode is reached. Stop now.")
)
"""Answer to requests beyond a limit, which is no part of the episode; programs do not expect an error here."""


class Sealed(Exception):
    """The episode is over."""


class ProgramChannel:
    """Requests of one episode's program; all coroutines run on the process's loop.

    Args:
        questions: queue of the requests to the policy.
        tools: the tools of the task's own session; None: it has none.
        count: counts the tokens of a request as a prompt; None: nobody can.
        only_appends: whether the same request again, before its answer is delivered, can only be a retry.
        pictures: reads the pictures of requests. None means that the policy reads text.
    """

    def __init__(
        self,
        questions: asyncio.Queue[ModelRequest],
        tools: ToolServer | None,
        count: Callable[[ProgramRequest], int] | None = None,
        *,
        only_appends: bool,
        pictures: RequestPictures | None = None,
    ) -> None:
        self._questions = questions
        self.pictures = pictures
        self.tools = tools
        self.count = count
        self._only_appends = only_appends
        self.num_retries = self.num_stops = 0
        self.waited_s = 0.0
        """Seconds that requests waited for the policy."""
        self.settings: dict[str, float] = {}
        """Last value of each setting of the client that has no effect."""
        self.refused: str | None = None
        """Reason why the last request was refused; None: it was not."""
        self.has_stopped = self.is_sealed = False
        self.answers: list[asyncio.Future[ModelMessage]] = []
        """Answer to each request, in their order."""
        self._numbers: dict[str, int] = {}
        """Digest of a request -> number of the last one."""
        self._delivered = set[int]()
        self._abandoned = set[int]()

    @property
    def undelivered(self) -> tuple[int, ...]:
        """Numbers of the policy's messages that the program never got."""
        written = [
            number
            for number, answer in enumerate(self.answers)
            if answer.done() and not answer.exception()
        ]
        return tuple(
            number
            for number in written
            if number not in self._delivered and self.answers[number].result() is not LIMIT
        )

    def ask(self, request: ProgramRequest, *, is_retry: bool) -> int | None:
        """Number of the request; a retry has that of the first one. None: the episode has stopped. Raises Sealed."""
        if self.is_sealed:
            raise Sealed
        if self.has_stopped:
            self.num_stops += 1
            return None
        self.refused = None
        self.settings |= request.settings
        digest = digest_of([list(request.messages), list(request.tools)])
        number = self._numbers.get(digest)
        if self._only_appends:
            is_left = number not in self._delivered
        else:
            is_left = number in self._abandoned
        if number is not None and (is_retry or is_left):
            self.num_retries += 1
            return number
        number = self._numbers[digest] = len(self.answers)
        self.answers.append(asyncio.get_running_loop().create_future())
        messages = [dict(message) for message in request.messages]
        tools = [dict(tool) for tool in request.tools]
        self._questions.put_nowait(
            ModelRequest("", messages, tools, self.answers[number], request.takes_one_call)
        )
        return number

    async def answer(self, number: int | None) -> ModelMessage:
        """The policy's message; raises Sealed."""
        if number is None:
            return LIMIT
        began = time.monotonic()
        turn = await asyncio.shield(self.answers[number])
        self.waited_s += time.monotonic() - began
        return turn

    def ended(self, number: int | None, *, is_delivered: bool) -> None:
        """Notes that the program has the answer to a request, or has left before."""
        if number is not None:
            (self._delivered if is_delivered else self._abandoned).add(number)

    def stop(self) -> None:
        """Answers waiting and further requests with `LIMIT`."""
        self.has_stopped = True
        for reply in self.answers:
            if not reply.done():
                reply.set_result(LIMIT)

    def seal(self) -> None:
        """Refuses further requests."""
        self.is_sealed = True
        for reply in self.answers:
            if not reply.done():
                reply.set_exception(Sealed())
                reply.exception()  # there may be nobody who reads it


class ProgramServer:
    """Serves the endpoints of all episodes of this process.

    Args:
        host: address to listen on.
        ports: ports to listen on, of which the first free one is taken. 0 means any.
        public: address at which programs reach it, with `{port}` for the port. None means that of `host`.
    """

    def __init__(self, host: str, ports: Sequence[int] = (0,), public: str | None = None) -> None:
        self._host = host
        self._ports = ports
        self._public = public
        self.url = ""
        """Address of programs."""
        self._channels: dict[str, ProgramChannel | None] = {}
        """Key -> its episode; None: it is over."""
        app = web.Application(client_max_size=MOST_BYTES)
        for path, wire in WIRES.items():
            app.router.add_post(path, self._with_channel(partial(_ask, wire)))
        app.router.add_post(anthropic_wire.COUNT_PATH, self._with_channel(_count))
        app.router.add_get("/v1/models", self._with_channel(_models))
        app.router.add_get(f"/v1/models/{MODEL}", self._with_channel(_model))
        app.router.add_get("/", self._with_channel(_probe))
        app.router.add_post("/mcp", self._with_channel(_use_tools))
        for path in (*WIRES, anthropic_wire.COUNT_PATH, "/v1/models", "/", "/mcp"):
            app.router.add_route("*", path, self._with_channel(_wrong_method))
        app.router.add_route("*", "/{path:.*}", self._with_channel(_unknown))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Starts to listen; raises EnvUnavailable, and XpError for a port that the user has named."""
        await self._runner.setup()
        for port in self._ports:
            try:
                await web.TCPSite(self._runner, self._host, port).start()
                break
            except OSError as error:
                fault = error
        else:
            await self._runner.cleanup()
            raise _not_listening(self._host, self._ports, fault)
        port = self._runner.addresses[0][1]
        self.url = (self._public or f"http://{self._host}:{{port}}").replace("{port}", str(port))

    async def stop(self) -> None:
        for key in self._channels:
            self.remove(key)
        await self._runner.cleanup()

    def add(self, channel: ProgramChannel) -> str:
        """Returns a new key, whose requests go to the channel."""
        key = f"xp-{secrets.token_hex(32)}"
        self._channels[key] = channel
        return key

    def remove(self, key: str) -> None:
        """Ends the episode of a key."""
        channel = self._channels.get(key)
        if channel is not None:
            channel.seal()
            self._channels[key] = None

    def _with_channel(
        self, handle: Callable[[web.Request, ProgramChannel], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """A handler that finds the episode of a request by its key, in the header of either kind of client."""

        async def handler(request: web.Request) -> web.StreamResponse:
            key = request.headers.get("x-api-key") or request.headers.get(
                "Authorization", ""
            ).removeprefix("Bearer ")
            if key not in self._channels:
                return _failed(
                    401, "unknown key: send the one of this episode, from OPENAI_API_KEY"
                )
            channel = self._channels[key]
            if channel is not None:
                with suppress(Sealed):
                    return await handle(request, channel)
            return _failed(409, "the episode is over")

        return handler


def _not_listening(host: str, ports: Sequence[int], fault: OSError) -> Exception:
    """The error of a server that cannot listen."""
    if ports[0] == 0:
        return EnvUnavailable(f"cannot listen on {host}: {fault.strerror}")
    if len(ports) == 1:
        fix = "set another port in env.options.listen, or {port} in env.options.endpoint where several processes play"
    else:
        fix = "set another port in env.options.listen"
    return XpError(
        f"cannot listen on {host}:{ports[0]}, to which env.options.endpoint leads: {fault.strerror}; {fix}",
        ExitCode.RUNTIME,
    )


def _failed(status: int, text: str, wire: Any = chat_wire) -> web.Response:
    return web.json_response(wire.error(status, text), status=status)


async def _read(
    wire: Any, request: web.Request, pictures: RequestPictures | None
) -> tuple[ProgramRequest, dict[str, Any]]:
    """A request, and its body; raises RefusedRequest."""
    try:
        body = await request.json()
        if not isinstance(body, dict):
            raise RefusedRequest("the body is no JSON object")
        if pictures is None:
            return wire.read(body), body
        # A picture takes a second to decode, and other episodes share the loop.
        return await asyncio.to_thread(wire.read, body, pictures), body
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, RefusedRequest):
            raise
        raise RefusedRequest(f"the body cannot be read: {type(error).__name__}: {error}") from None


async def _ask(wire: Any, request: web.Request, channel: ProgramChannel) -> web.StreamResponse:
    """Answers a request for the model's next message."""
    try:
        asked, body = await _read(wire, request, channel.pictures)
    except RefusedRequest as error:
        channel.refused = str(error)
        return _failed(400, channel.refused, wire)
    is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
    number = channel.ask(asked, is_retry=is_retry)
    is_delivered = False
    asking = asyncio.ensure_future(channel.answer(number))
    try:
        if not body.get("stream"):
            response: web.StreamResponse = web.json_response(wire.answer(await asking, body))
            await response.prepare(request)
            await response.write_eof()
        else:
            response = await _stream(request, asking, body, wire)
        is_delivered = True
        return response
    except ConnectionResetError:
        return web.Response()  # The program has left.
    finally:
        channel.ended(number, is_delivered=is_delivered)


async def _stream(
    request: web.Request, asking: asyncio.Future[ModelMessage], body: Mapping[str, Any], wire: Any
) -> web.StreamResponse:
    """Sends the answer as events, and comments until it is there."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    if (await asyncio.wait({asking}, timeout=PING_S))[0]:
        asking.result()  # an exception becomes a status while there is none
    await response.prepare(request)
    while not asking.done():
        await response.write(b": waiting\n\n")
        await asyncio.wait({asking}, timeout=PING_S)
    for event in wire.events(asking.result(), body):
        if "type" in event:
            head = f"event: {event['type']}\n"
        else:
            head = ""
        if isinstance(event, str):
            data = event
        else:
            data = json.dumps(event)
        await response.write(f"{head}data: {data}\n\n".encode())
    await response.write_eof()
    return response


async def _count(request: web.Request, channel: ProgramChannel) -> web.Response:
    """Answers how many tokens a request has as a prompt; this is no request to the policy."""
    if channel.count is None:
        return _failed(404, "there is no tokenizer of the policy", anthropic_wire)
    try:
        asked, _ = await _read(anthropic_wire, request, channel.pictures)
        size = await asyncio.get_running_loop().run_in_executor(None, channel.count, asked)
    except (RefusedRequest, XpError) as error:
        return _failed(400, str(error), anthropic_wire)
    return web.json_response({"input_tokens": size})


async def _models(_request: web.Request, _channel: ProgramChannel) -> web.Response:
    return web.json_response({"object": "list", "data": [POLICY], "has_more": False})


async def _model(_request: web.Request, _channel: ProgramChannel) -> web.Response:
    return web.json_response(POLICY)


async def _probe(_request: web.Request, _channel: ProgramChannel) -> web.Response:
    """Answers a client that asks whether the endpoint is there."""
    return web.Response()


async def _use_tools(request: web.Request, channel: ProgramChannel) -> web.Response:
    if channel.tools is None:
        return _failed(404, "the task has no tools of its own")
    if channel.is_sealed:
        raise Sealed
    try:
        message = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        return _failed(400, f"no JSON: {error}")
    answer = await channel.tools.answer(message)
    if answer is None:
        return web.Response(status=202)
    return web.json_response(answer)


async def _wrong_method(request: web.Request, _channel: ProgramChannel) -> web.Response:
    """Refuses the method, as MCP's protocol wants it of a server without streams and sessions."""
    if request.path in ("/", "/v1/models"):
        allowed = "GET, HEAD"
    else:
        allowed = "POST"
    response = _failed(405, f"{request.method} {request.path}: only {allowed} is served")
    response.headers["Allow"] = allowed
    return response


async def _unknown(request: web.Request, channel: ProgramChannel) -> web.Response:
    problem = f"{request.method} {request.path}: not served; there are POST {', '.join(WIRES)}"
    if request.method == "POST" and MODEL_REQUEST.search(request.path):
        channel.refused = problem
    return _failed(404, problem)
