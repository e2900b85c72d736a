"""Requests to an OpenAI-compatible API, with retries; its key is sent to the given origin only."""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from xp.envs.base import EnvFault
from xp.envs.chat_answers import Answer, is_failure, is_too_long, read_answer
from xp.envs.loop import run
from xp.envs.retry import backoff_s, retry_after_s
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_of
from xp.lib.loopback import is_loopback
from xp.lib.secrets.redaction import Redactor
from xp.lib.text import counted, shortened, valid_text
from xp.spec.judge import Endpoint

SLACK_S: Final = 5.0
FAILURES: Final = (OSError, EnvFault)
"""Exceptions of a request that had no whole answer."""
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


class Api:
    """Client of one model; thread-safe, with one connection per thread.

    Args:
        endpoint: address and settings.
        name: name of the model.
        key: value of its API key. None means no key.
        sleep: function that waits for a number of seconds.
        section: path of the settings, for messages.
        max_attempts: tries of a request that meets 429, 5xx or a broken connection.
    """

    path = "/chat/completions"

    def __init__(
        self,
        endpoint: Endpoint,
        name: str,
        key: str | None,
        sleep: Callable[[float], None] = time.sleep,
        section: str = "model",
        max_attempts: int = 8,
    ) -> None:
        url = (endpoint.url or "").rstrip("/")
        self.url = url if urlsplit(url).path else f"{url}/v1"
        if key is not None and not (self.url.startswith("https://") or is_loopback(self.url)):
            raise XpError(
                f"{section}.key: the key would go to {self.url} in the clear; give an https address",
                ExitCode.SECRET,
            )
        if key is not None and not (key.isascii() and key.isprintable()):
            raise XpError(
                f"the value of {endpoint.key} is no API key: it has spaces, control characters or letters outside ASCII",
                ExitCode.SECRET,
            )
        self.name = name
        self._endpoint = endpoint
        self._sleep = sleep
        self._section = section
        self._max_attempts = max_attempts
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "xp",
        }
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._redactor = Redactor([key] if key else [])
        self._client: Any = None
        self._has_answered = False
        """True if any request with these settings was answered."""

    def __repr__(self) -> str:
        return f"Api({self.url!r}, {self.name!r})"

    def ask(
        self,
        messages: list[Any],
        tools: list[Any],
        temperature: float,
        top_p: float = 1.0,
        name: str = "",
    ) -> Answer:
        """Requests one assistant message.

        Args:
            name: name of the request (task, sample and turn), from which its seed is derived. With one seed for all,
                the samples of a task would be the same.

        Raises:
            TooLong: the dialogue and `model.max_tokens` exceed the model's context.
            DialogueFails: all attempts failed, or the answer is no message, but another dialogue is answered.
            Unavailable: all attempts failed.
            XpError: the API refuses all such requests; `model.max_tokens` (CONFIG) alone exceeds the model's context.
        """
        endpoint = self._endpoint
        body = {
            "model": self.name,
            "messages": messages,
            "temperature": temperature,
            endpoint.limit_name: endpoint.max_tokens,
        }
        if top_p < 1:  # some APIs refuse the parameter
            body["top_p"] = top_p
        if tools:
            body["tools"] = tools
        if endpoint.seed is not None:
            body["seed"] = int(digest_of([endpoint.seed, name])[:7], 16)  # some APIs take 31 bits
        try:
            answer = self._answer(self._post(json.dumps(body).encode()))
        except TooLong as fault:
            if not self._has_answered and not self._says_hello(body):
                limit = f"{self._section}.max_tokens"
                raise XpError(
                    f"{limit}={endpoint.max_tokens}: {self.url} refuses every dialogue with it: {fault}\n"
                    f"the prompt and max_tokens must fit the model's context: lower {limit}"
                ) from None
            raise
        except _NoMessage as fault:
            if not self._says_hello(body):
                raise
            raise DialogueFails(f"{fault}; the endpoint answers other dialogues") from None
        self._has_answered = True
        return answer

    def _post(self, body: bytes) -> bytes:
        """Sends a request, with retries, and returns the reply."""
        is_busy = False
        for attempt in range(1, self._max_attempts + 1):
            try:
                status, headers, reply = self._send(body)
            except FAILURES as error:
                is_busy = False
                wait = backoff_s(attempt)
                fault = f"{type(error).__name__}: {error}"
            else:
                has_failed = status == 200 and is_failure(reply)
                if status == 200 and not has_failed:
                    return reply
                fault = f"HTTP {status}: {self._message(reply)}"
                is_busy = status == 429
                if status != 429 and status < 500 and not has_failed:
                    self._refuse(status, reply)
                requested_s = retry_after_s(headers.get("Retry-After"), time.time())
                if requested_s is None:
                    wait = backoff_s(attempt)
                else:
                    wait = requested_s + backoff_s(1) * 0.2
                if wait > MOST_WAIT_S:
                    raise Unavailable(
                        f"{self.url} asks for a pause of {wait:.0f} s ({fault})",
                        ExitCode.ENVIRONMENT,
                    )
            if attempt < self._max_attempts:
                self._sleep(wait)
        tries = counted(self._max_attempts, "try", "tries")
        problem = f"did not answer in {tries}; the last one: {fault}"
        if not is_busy and self._answers_another():
            raise DialogueFails(f"the endpoint {problem}; it answers other dialogues")
        raise Unavailable(f"{self.url} {problem}", ExitCode.ENVIRONMENT)

    def _answers_another(self) -> bool:
        """Returns whether the API is running: it answers a dialogue of one word, or refuses its content."""
        body = {"model": self.name, "messages": HELLO, self._endpoint.limit_name: 1}
        try:
            status, _, reply = self._send(json.dumps(body).encode())
        except FAILURES:
            return False
        return status in TAKEN and not is_failure(reply)

    def _says_hello(self, body: Mapping[str, Any]) -> bool:
        """Returns whether the API answers `HELLO` with a message, with the tools and settings of the request.

        Settings that the API refuses for every dialogue then still stop the evaluation.
        """
        hello = json.dumps({**body, "messages": HELLO}).encode()
        for _ in range(HELLOS):
            with suppress(_NoMessage, TooLong):
                self._answer(self._post(hello))
                self._has_answered = True
                return True
        return False

    def _send(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        return run(self._exchange(body), self._endpoint.timeout_s + SLACK_S)

    async def _exchange(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request on the process's loop, and reads the whole answer."""
        import aiohttp  # not needed to plan

        limit_s = self._endpoint.timeout_s
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=limit_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self.url.startswith("https://") and not is_loopback(self.url),
            )
            atexit.register(lambda client: run(client.close(), SLACK_S), self._client)
        url = f"{self.url}{self.path}"
        try:
            async with self._client.post(
                url, data=body, headers=self._headers, allow_redirects=False
            ) as reply:
                return reply.status, reply.headers, await reply.read()
        except TimeoutError:
            raise TimeoutError(f"no complete answer in {limit_s:g} s") from None
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from None

    def _refuse(self, status: int, reply: bytes) -> NoReturn:
        """Raises the exception for an answer that is no success."""
        text = self._message(reply)
        section = self._section
        fix = ""
        if status == 400 and is_too_long(reply):
            raise TooLong(text)
        if status in (401, 403):
            raise XpError(
                f"{self.url} refuses the key ({status}): {text}\nset {section}.key to the variable that holds the"
                f" right one; it is {self._endpoint.key or 'null'}",
                ExitCode.SECRET,
            )
        if status == 404:
            fix = f"; check that {section}.url ends in /v1 and that the server offers this model"
        elif status < 400:
            fix = "; redirects are not followed, since the key stays with the origin that was given"
        kind = _NoMessage if status in REFUSED else XpError
        raise kind(
            f"{self.url}, model {self.name}: HTTP {status}: {text}{fix}", ExitCode.ENVIRONMENT
        )

    def _message(self, reply: bytes) -> str:
        """The API's own message, with the key removed."""
        try:
            value = json.loads(reply)
            error = value.get("error") or value["choices"][0]["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            text = reply.decode("utf-8", "replace")
        return shortened(self._redactor.redact(" ".join(valid_text(text).split())), SHOWN)

    def _answer(self, reply: bytes) -> Answer:
        try:
            return read_answer(reply)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _NoMessage(
                f"{self.url} does not speak the chat-completions protocol: {type(error).__name__} {error}"
                f" in {self._message(reply)!r}",
                ExitCode.ENVIRONMENT,
            ) from None
