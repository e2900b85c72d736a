"""Requests to an OpenAI-compatible API, with retries; its key is sent to the given origin only."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from xp.envs.retry import backoff_s, retry_after_s
from xp.envs.target import is_loopback
from xp.errors import ExitCode, XpError
from xp.evaluation.replies import CUT, MOST_DEPTH, count, is_deep, is_failure, is_said, is_too_long, said_text
from xp.evaluation.settings import Endpoint
from xp.lib.exchange import post
from xp.lib.text import counted, valid_text, valid_value
from xp.secrets.redaction import Redactor

MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
MOST_WAIT_S: Final = 300.0
"""Longest pause in seconds; for a longer one the evaluation stops, and continues when it is called again."""
REFUSED: Final = (400, 422)
"""Status codes of a request whose content the API refuses."""
TAKEN: Final = (200, *REFUSED)
"""Status codes of a small request that show that an API is running."""
HELLO: Final = ({"role": "user", "content": "Hello"},)
"""A dialogue that every model answers."""
HELLOS: Final = 3
"""Attempts at it, since a sampled answer may lack a message by chance."""
SHOWN: Final = 300
"""Largest number of characters of an API's message in xp's message."""


class TooLong(Exception):
    """The dialogue exceeds the model's context; the episode is truncated, and void if it has no turn yet."""


class DialogueFails(Exception):
    """This dialogue is refused or without an answer, but the API answers others; the episode is void."""


class Unavailable(XpError):
    """The API did not answer in any attempt; the episode is played again later."""


class _NoMessage(XpError):
    """The API refuses the content of a request, or its answer has no message."""


@dataclass(frozen=True)
class Answer:
    """The model's output in one turn."""

    message: Mapping[str, Any]
    """The API's message; its `content` is a string or None."""
    prompt_tokens: int | None
    completion_tokens: int | None
    """Generated tokens; None: the API does not count them."""
    is_cut: bool
    """True if `model.max_tokens` or the model's context cut the message."""


class Api:
    """Client of one model; thread-safe, with one connection per thread.

    Args:
        endpoint: address and settings.
        name: name of the model.
        key: value of its API key; None: no key.
        sleep: function that waits for a number of seconds.
    """

    def __init__(
        self, endpoint: Endpoint, name: str, key: str | None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        assert endpoint.url is not None  # checked by words.read
        url = endpoint.url.rstrip("/")
        self.url = url if urlsplit(url).path else f"{url}/v1"
        if key is not None and not (self.url.startswith("https://") or is_loopback(self.url)):
            raise XpError(
                f"model.key: the key would go to {self.url} in the clear; give an https address", ExitCode.SECRET
            )
        if key is not None and not (key.isascii() and key.isprintable()):
            raise XpError(
                f"the value of {endpoint.key} is no API key: it holds other than plain characters", ExitCode.SECRET
            )
        self.name = name
        self._endpoint, self._sleep = endpoint, sleep
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "xp"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._redactor = Redactor([key] if key else [])
        self._local = threading.local()
        self._has_answered = False
        """True if any request with these settings was answered."""

    def __repr__(self) -> str:
        return f"Api({self.url!r}, {self.name!r})"

    def ask(self, messages: list[dict[str, Any]], tools: list[Any], temperature: float) -> Answer:
        """Requests one assistant message.

        Raises:
            TooLong: the dialogue and `model.max_tokens` exceed the model's context.
            DialogueFails: all attempts failed, or the answer is no message, but another dialogue is answered.
            Unavailable: all attempts failed.
            XpError: the API refuses all such requests; `model.max_tokens` (CONFIG) alone exceeds the model's context.
        """
        own = self._endpoint
        body = {"model": self.name, "messages": messages, "temperature": temperature, own.limit_name: own.max_tokens}
        if tools:
            body["tools"] = tools
        if own.seed is not None:
            body["seed"] = own.seed
        # The same tools and settings, so that settings which the API refuses still stop the evaluation.
        hello = json.dumps({**body, "messages": HELLO}).encode()
        try:
            answer = self._answer(self._post(json.dumps(body).encode()))
        except TooLong as fault:
            if not self._has_answered and not self._says_hello(hello):
                raise XpError(
                    f"model.max_tokens={own.max_tokens}: {self.url} refuses every dialogue with it: {fault}"
                    "\nthe prompt and max_tokens must fit the model's context: lower model.max_tokens"
                ) from None
            raise
        except _NoMessage as fault:
            if not self._says_hello(hello):
                raise
            raise DialogueFails(f"{fault}; the endpoint answers other dialogues") from None
        self._has_answered = True
        return answer

    def _post(self, body: bytes) -> bytes:
        """Sends a request, with retries, and returns the reply."""
        is_busy = False
        for attempt in range(1, self._endpoint.max_attempts + 1):
            try:
                status, headers, reply = self._send(body)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                is_busy = False
                wait, fault = backoff_s(attempt), f"{type(error).__name__}: {error}"
            else:
                has_failed = status == 200 and is_failure(reply)
                if status == 200 and not has_failed:
                    return reply
                fault, is_busy = f"HTTP {status}: {self._told(reply)}", status == 429
                if status != 429 and status < 500 and not has_failed:
                    self._refuse(status, reply)
                asked = retry_after_s(headers.get("Retry-After"), time.time())
                wait = backoff_s(attempt) if asked is None else asked + backoff_s(1) * 0.2
                if wait > MOST_WAIT_S:
                    raise Unavailable(f"{self.url} asks for a pause of {wait:.0f} s ({fault})", ExitCode.ENVIRONMENT)
            if attempt < self._endpoint.max_attempts:
                self._sleep(wait)
        tries = counted(self._endpoint.max_attempts, "try", "tries")
        told = f"did not answer in {tries}; the last one: {fault}"
        if not is_busy and self._answers_another():
            raise DialogueFails(f"the endpoint {told}; it answers other dialogues")
        raise Unavailable(f"{self.url} {told}", ExitCode.ENVIRONMENT)

    def _answers_another(self) -> bool:
        """Returns whether the API is running: it answers a dialogue of one word, or refuses its content."""
        body = {"model": self.name, "messages": HELLO, self._endpoint.limit_name: 1}
        try:
            status, _, reply = self._send(json.dumps(body).encode())
        except (OSError, http.client.HTTPException):
            self._drop()
            return False
        return status in TAKEN and not is_failure(reply)

    def _says_hello(self, body: bytes) -> bool:
        """Returns whether the API answers `HELLO` with a message."""
        for _ in range(HELLOS):
            with suppress(_NoMessage, TooLong):
                self._answer(self._post(body))
                self._has_answered = True
                return True
        return False

    def _send(self, body: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        reply = post(
            self._connection(),
            f"{urlsplit(self.url).path}/chat/completions",
            body,
            self._headers,
            limit_s=self._endpoint.timeout_s,
            max_bytes=MAX_REPLY_BYTES,
        )
        if reply.is_last:
            self._drop()
        return reply.status, reply.headers, reply.body

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = self._connect()
        return found

    def _connect(self) -> http.client.HTTPConnection:
        parts, timeout = urlsplit(self.url), self._endpoint.timeout_s
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        context = ssl.create_default_context()
        proxy = urllib.request.getproxies().get("https")
        if proxy and not is_loopback(self.url) and not urllib.request.proxy_bypass(parts.hostname):
            way = urlsplit(proxy)
            tunnel = http.client.HTTPSConnection(way.hostname or "", way.port, timeout=timeout, context=context)
            tunnel.set_tunnel(parts.hostname, parts.port)
            return tunnel
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=context)

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _refuse(self, status: int, reply: bytes) -> None:
        told = self._told(reply)
        if status == 400 and is_too_long(reply):
            raise TooLong(told)
        if status in (401, 403):
            key = self._endpoint.key
            raise XpError(
                f"{self.url} refuses the key ({status}): {told}\n"
                + (
                    f"it is read from {key}"
                    if key
                    else "give model.key=VARIABLE, the name of the variable that holds one"
                ),
                ExitCode.SECRET,
            )
        way_out = (
            "; redirects are not followed, since the key stays with the origin that was given" if status < 400 else ""
        )
        if status == 404:
            way_out = "; is model.url right up to /v1, and does it serve model.name?"
        kind = _NoMessage if status in REFUSED else XpError
        raise kind(f"{self.url}, model {self.name}: HTTP {status}: {told}{way_out}", ExitCode.ENVIRONMENT)

    def _told(self, reply: bytes) -> str:
        """The API's own message, with the key removed."""
        try:
            value = json.loads(reply)
            error = value.get("error") or value["choices"][0]["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            text = reply.decode("utf-8", "replace")
        text = self._redactor.redact(" ".join(valid_text(text).split()))
        return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."

    def _answer(self, reply: bytes) -> Answer:
        try:
            value = json.loads(reply)
            choice = value["choices"][0]
            message = choice["message"]
            if not isinstance(message, dict):
                raise TypeError("a message that is no object")
            if is_deep(message):
                raise ValueError(f"a message nested more than {MOST_DEPTH} levels deep")
            message = {**message, "content": said_text(message.get("content"))}
            if choice.get("finish_reason") == "content_filter" and not is_said(message):
                raise ValueError("the answer was filtered")
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _NoMessage(
                f"{self.url} does not speak the chat-completions protocol: {type(error).__name__} {error}"
                f" in {self._told(reply)!r}",
                ExitCode.ENVIRONMENT,
            ) from None
        usage = value.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return Answer(
            valid_value(message),
            count(usage.get("prompt_tokens")),
            count(usage.get("completion_tokens")),
            is_cut=choice.get("finish_reason") == CUT,
        )
