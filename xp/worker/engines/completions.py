"""Generates with a vLLM server over HTTP: token ids in, token ids and their log-probabilities out."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar

from xp.errors import ExitCode, XpError
from xp.lib.loopback import direct_opener
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Done,
    GeneratedTurn,
    GenerationRequest,
    Opening,
    RequestEngine,
)

MODEL = "policy"
"""Name of the model on the server (`--served-model-name`)."""
MAX_REQUESTS = 256
"""Largest number of concurrent requests of one process; the server batches as many as it can."""
TIMEOUT_S = 1800.0
NEVER = -100.0
"""Bias of the logit of a token that is never sampled: the least that vLLM takes."""


class CompletionClient:
    """A client of `/v1/completions` (vLLM 0.22 to 0.31).

    Args:
        url: URL of the server, without a path.
        sampling: temperature, top-p and top-k.
        end_ids: tokens that end a turn.
        log: the server's log, for messages about faults.
        key: the server's key. None means that it has none.
        never: tokens that are never sampled.
    """

    engine: ClassVar[str] = "vLLM"
    path: ClassVar[str] = "/v1/completions"

    def __init__(
        self,
        url: str,
        sampling: Sampling,
        end_ids: Sequence[int],
        log: str,
        *,
        key: str | None = None,
        never: Sequence[int] = (),
    ) -> None:
        self._never = never
        self._url = url
        self.sampling = sampling
        self._log = log
        self.end_ids = list(end_ids)
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers |= {"Authorization": f"Bearer {key}"}
        # The server is on this machine, so proxies in the environment are ignored.
        self._opener = direct_opener()

    def answer(self, request: GenerationRequest) -> GeneratedTurn:
        """Sends the request and waits for the turn; raises XpError: (ENGINE) the server does not answer; (STAGE_FAILED)
        it refuses."""
        answer = self._post(request)
        try:
            turn = self._turn(answer)
        except (LookupError, TypeError, ValueError) as error:
            fault = f"its answer has no token ids and log-probabilities ({error!r})"
            raise self._fault(fault, ExitCode.STAGE_FAILED) from None
        if len(turn.ids) != len(turn.logprobs) or not 0 < len(turn.ids) <= request.max_tokens:
            lengths = f"{len(turn.ids)} token ids with {len(turn.logprobs)} log-probabilities"
            raise self._fault(
                f"{lengths}, for at most {request.max_tokens} tokens", ExitCode.STAGE_FAILED
            )
        return turn

    def _body(self, request: GenerationRequest) -> dict[str, Any]:
        parameters = sampling_parameters(self.sampling, request, self._never)
        parameters |= {"stop_token_ids": self.end_ids}
        return {"model": MODEL, "prompt": list(request.ids), **parameters, "return_token_ids": True}

    def _turn(self, answer: Any) -> GeneratedTurn:
        choice = answer["choices"][0]
        return GeneratedTurn(choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def _post(self, request: GenerationRequest) -> Any:
        body = json.dumps(self._body(request)).encode()
        sent = urllib.request.Request(f"{self._url}{self.path}", body, self._headers)
        try:
            with self._opener.open(sent, timeout=TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code >= 500:
                code = ExitCode.ENGINE
            else:
                code = ExitCode.STAGE_FAILED
            raise self._fault(
                f"{error.code}: {error.read(500).decode(errors='replace')}", code
            ) from None
        except TimeoutError as error:
            raise self._fault(f"{error} after {TIMEOUT_S:g} s") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._fault(str(error)) from None

    def _fault(self, fault: str, code: ExitCode = ExitCode.ENGINE) -> XpError:
        return XpError(f"the {self.engine} server failed: {fault}; its log is {self._log}", code)


def biases(never: Sequence[int]) -> dict[str, dict[int, float]]:
    """The parameter of vLLM and SGLang that keeps tokens from being sampled; empty if there are none."""
    if never:
        return {"logit_bias": dict.fromkeys(never, NEVER)}
    return {}


def sampling_parameters(
    sampling: Sampling, request: GenerationRequest, never: Sequence[int]
) -> dict[str, Any]:
    """vLLM's parameters of a request, the same for a server and in the process.

    Args:
        sampling: temperature, cuts and penalties.
        request: the turn.
        never: tokens that are never sampled.
    """
    parameters = {
        "n": 1,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "logprobs": 0,
        **biases(never),
    }
    if sampling.stop:
        parameters |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
    return parameters


class ServerEngine(RequestEngine):
    """The engine of a server, which batches the requests by itself.

    Args:
        client: client of the server.
        opening, seed, is_stop: see EpisodeEngine.
    """

    def __init__(
        self,
        client: CompletionClient,
        opening: Opening,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool],
    ) -> None:
        super().__init__(opening, client.end_ids, client.sampling, seed, is_stop)
        self._client = client
        self._pool = ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="xp-completion")

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Sends one HTTP request; `done` gets the result or the exception of the client."""

        def ended(future: Future[GeneratedTurn]) -> None:
            if not future.cancelled():
                done(future.exception() or future.result())

        self._pool.submit(self._client.answer, request).add_done_callback(ended)

    def close(self) -> None:
        """Drops the requests that are not sent yet."""
        self._pool.shutdown(wait=False, cancel_futures=True)
