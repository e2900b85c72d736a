"""A small HTTP server that speaks SGLang's /generate, for a machine without a GPU: not SGLang.

Real: the sampling parameters (SGLang's own class, so that an unknown name is refused as there; an unknown field of the
request is ignored, as there: the router adds some) and the log-probabilities (of a real, tiny model). Not real:
batching, prefix caches, weights that change, everything else.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.support.http_server import Reply, Request, http_server

Says = Callable[[list[int]], list[int] | None]
"""From the context to the ids that the policy writes whole (its end token included); None: it samples."""


class Policy(Protocol):
    """The policy that generates the answers."""

    def write(
        self, ids: list[int], params: Any, is_aborted: Callable[[], bool]
    ) -> tuple[list[int], list[float], str]:
        """Ids, their log-probabilities, and the finish reason (`stop`, `length`, `abort`)."""


class TinyPolicy:
    """A real model on the CPU; `says` puts words into its mouth, whose log-probabilities are then the model's own.

    Args:
        model: a small causal language model.
        end_id: the token that ends a turn.
        says: the words; None: it samples.
    """

    def __init__(self, model: Any, end_id: int, says: Says | None = None) -> None:
        self._model = model
        self._end_id = end_id
        self._says = says
        self._lock = threading.Lock()

    def write(
        self, ids: list[int], params: Any, is_aborted: Callable[[], bool]
    ) -> tuple[list[int], list[float], str]:
        said = self._says(ids) if self._says else None
        if said is not None:
            cut = said[: params.max_new_tokens]
            return (
                cut,
                self.logprobs(ids, cut, params.temperature),
                "stop" if cut == said else "length",
            )
        return self._sample(ids, params, is_aborted)

    def logprobs(
        self, ids: Sequence[int], written: Sequence[int], temperature: float
    ) -> list[float]:
        """Log-probability of each generated token, given all tokens before it."""
        import torch

        with self._lock, torch.inference_mode():
            logits = self._model(input_ids=torch.tensor([[*ids, *written]])).logits[0].float()
        rows = torch.log_softmax(logits / temperature, -1)[len(ids) - 1 : -1]
        found: list[float] = rows.gather(1, torch.tensor(written)[:, None])[:, 0].tolist()
        return found

    def _sample(
        self, ids: list[int], params: Any, is_aborted: Callable[[], bool]
    ) -> tuple[list[int], list[float], str]:
        import torch

        written: list[int] = []
        logprobs: list[float] = []
        while len(written) < params.max_new_tokens:
            if is_aborted():
                return written, logprobs, "abort"
            with self._lock, torch.inference_mode():
                logits = (
                    self._model(input_ids=torch.tensor([[*ids, *written]])).logits[0, -1].float()
                )
            row = torch.log_softmax(logits / params.temperature, -1)
            token = int(torch.multinomial(row.exp(), 1))
            written.append(token)
            logprobs.append(float(row[token]))
            if token in (self._end_id, *(params.stop_token_ids or ())):
                return written, logprobs, "stop"
        return written, logprobs, "length"


class FakeSglang:
    """Serves one policy on an address of this machine; use it as a context manager."""

    def __init__(
        self, policy: Policy, decode: Callable[[list[int]], str], host: str = "127.0.0.1"
    ) -> None:
        self.policy = policy
        self.decode = decode
        self.requests: list[dict[str, Any]] = []
        """Bodies of all /generate requests."""
        self.faults: list[int] = []
        """HTTP statuses that the next requests are answered with."""
        self.broken: list[Exception] = []
        """Faults of this server's own: the test that caused them is wrong."""
        self.aborted = threading.Event()
        self._writing: set[int] = set()
        """Threads that compute."""
        self._server = http_server(self._reply, host)

    def __enter__(self) -> FakeSglang:
        self.address = self._server.__enter__().url.removeprefix("http://")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)
        while self._writing:  # torch aborts a process that ends in the middle of its work.
            time.sleep(0.05)
        if self.broken:
            raise self.broken[0]

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer as SGLang does; raises TypeError for an unknown parameter."""
        from sglang.srt.sampling.sampling_params import SamplingParams

        params = SamplingParams(**body["sampling_params"])
        ids = list(body["input_ids"])
        self.requests.append(body)
        self._writing.add(threading.get_ident())
        try:
            written, logprobs, finish = self.policy.write(ids, params, self.aborted.is_set)
        finally:
            self._writing.discard(threading.get_ident())
        rows = [[logprob, token, None] for token, logprob in zip(written, logprobs, strict=True)]
        finish_reason: dict[str, Any] = {"type": finish}
        meta = {
            "id": str(random.random()),
            "finish_reason": finish_reason,
            "prompt_tokens": len(ids),
            "completion_tokens": len(written),
            "cached_tokens": 0,
            "weight_version": "default",
            "output_token_logprobs": rows if body.get("return_logprob") else None,
        }
        return {"text": self.decode(written), "meta_info": meta, "output_ids": written}

    def _reply(self, request: Request) -> Reply:
        if request.path != "/generate":
            return Reply(self._answer(request.path.partition("?")[0]))
        if self.faults:
            return Reply({"error": "as the test asked"}, self.faults.pop(0))
        try:
            return Reply(self.generate(request.json))
        except TypeError as error:
            return Reply({"error": {"message": str(error)}}, 400)
        except Exception as error:
            self.broken.append(error)
            return Reply({"error": {"message": repr(error)}}, 500)

    def _answer(self, path: str) -> Any:
        """Everything that Slime and its router ask besides."""
        if path == "/abort_request":
            self.aborted.set()
            return {}
        return {
            "/server_info": {
                "tp_size": 1,
                "pp_size": 1,
                "dp_size": 1,
                "enable_memory_saver": False,
            },
            "/get_server_info": {
                "tp_size": 1,
                "pp_size": 1,
                "dp_size": 1,
                "enable_memory_saver": False,
            },
            "/v1/loads": {"loads": []},
            "/workers": {"workers": [{"url": f"http://{self.address}"}]},
        }.get(path, {})
