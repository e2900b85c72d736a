"""Writes with a vLLM server over HTTP: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.conversation import EngineLost
from xp.backends.trl.worker.writing import Done, GeneratedTurn, GenerationRequest
from xp.envs.retry import RetryRule, retried
from xp.errors import ExitCode, XpError

MODEL = "policy"
"""Name of the model on the server (`--served-model-name`)."""
MAX_REQUESTS = 256
"""In flight from one process; the server batches what it has room for."""
TIMEOUT_S = 1800.0
ATTEMPTS = 3


class _Hiccup(Exception):
    """The server did not answer, or with a fault of its own."""


class ServerWriter:
    """A client of `/v1/completions` (vLLM 0.22 to 0.31); each process talks to the server for itself.

    Args:
        url: of the server, without a path.
        sampling: temperature and cuts.
        end_ids: tokens that end a turn.
        log: the server's own, for the message when it fails.
        key: what the server wants of its clients; None: nothing.
        pause_s: before a second attempt; doubled for the third.
    """

    def __init__(
        self,
        url: str,
        sampling: TRLSampling,
        end_ids: Sequence[int],
        log: str,
        *,
        key: str | None = None,
        pause_s: float = 1.0,
    ) -> None:
        self._url, self._sampling, self._log = url, sampling, log
        self._again = RetryRule(ATTEMPTS, (_Hiccup,), base_s=pause_s)
        self._end_ids = list(end_ids)
        self._headers = {"Content-Type": "application/json"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key is not None else {}
        self._pool = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="xp-completion")
        # The server is on this machine: no proxy of the environment's stands between.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    engine: ClassVar[str] = "vLLM"
    path: ClassVar[str] = "/v1/completions"
    is_writing = False
    """In this process; the server does it by itself."""

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """One HTTP request; `done` may get what `answer` raises."""

        def ended(future: Future[GeneratedTurn]) -> None:
            if not future.cancelled():
                done(future.exception() or future.result())

        self._pool.submit(self.answer, request).add_done_callback(ended)

    def step(self, is_live: bool) -> None:
        """The server's own affair."""

    def goes_on(self, is_live: bool) -> bool:
        """No other process waits for this one."""
        return is_live

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def answer(self, request: GenerationRequest) -> GeneratedTurn:
        """Waits for it; raises XpError(STAGE_FAILED): EngineLost where the server does not answer."""
        answer = self._post(self._body(request))
        try:
            written = self._turn(answer)
        except (LookupError, TypeError, ValueError) as error:
            raise self._failed(f"its answer has no token ids and log-probabilities ({error!r})") from None
        if len(written.ids) != len(written.logprobs) or not written.ids:
            raise self._failed(f"{len(written.ids)} token ids with {len(written.logprobs)} log-probabilities")
        return written

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        sampling = self._sampling
        return {
            "model": MODEL,
            "prompt": list(request.ids),
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "stop_token_ids": self._end_ids,
            **({"stop": list(sampling.stop), "include_stop_str_in_output": True} if sampling.stop else {}),
            "return_token_ids": True,
        }

    def _turn(self, answer: Any) -> GeneratedTurn:
        choice = answer["choices"][0]
        return GeneratedTurn(choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def _post(self, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(f"{self._url}{self.path}", json.dumps(body).encode(), self._headers)
        try:
            return retried(lambda: self._sent(request), self._again)
        except _Hiccup as fault:
            raise self._lost(str(fault)) from None

    def _sent(self, request: urllib.request.Request) -> Any:
        """The answer to one try; raises _Hiccup where another one may help."""
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            fault = f"{error.code}: {error.read(500).decode(errors='replace')}"
            raise _Hiccup(fault) if error.code >= 500 else self._failed(fault) from None
        except TimeoutError as error:
            raise self._lost(f"{error} after {TIMEOUT_S:g} s") from None
        except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
            raise _Hiccup(str(error)) from None

    def _failed(self, fault: str) -> XpError:
        return XpError(self._words(fault), ExitCode.STAGE_FAILED)

    def _lost(self, fault: str) -> EngineLost:
        return EngineLost(self._words(fault), ExitCode.STAGE_FAILED)

    def _words(self, fault: str) -> str:
        return f"the {self.engine} server failed: {fault}; its log is {self._log}"
