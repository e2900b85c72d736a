"""Replaces vLLM behind SkyRL's inference interface: samples on the CPU with the current weights."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface

from xp.backends.skyrl.worker.rehearsal.sampler import SampledText, Sampler, SampleRequest

QUIET_S = 0.004
"""Seconds without a further request after which a batch begins."""


@dataclass
class _Waiting:
    request: SampleRequest
    answer: asyncio.Future[SampledText]


class CpuEngine(InferenceEngineInterface):  # type: ignore[misc]
    """Answers simultaneous requests as one batch. A copy in another process has only the file's path.

    Args:
        model: directory of the initial model.
        weights: file with the current weights from SkyRL's workers (weights.py).
        seed: seed of the sampling.
        num_threads: number of torch's threads.
    """

    def __init__(self, model: str, weights: Path, seed: int, num_threads: int) -> None:
        self.weights = weights
        self._arguments = (model, weights, seed, num_threads)
        self._model, self._seed, self._num_threads = model, seed, num_threads
        self._sampler: Sampler | None = None
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None
        self.weight_version = 0
        self._turn = asyncio.Lock()
        """Lock held while a batch is generated, or weights change."""

    def __reduce__(self) -> Any:
        return CpuEngine, self._arguments

    @property
    def model_name(self) -> str:
        return self._model

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Answers one or several requests, in SkyRL's format."""
        del model
        parameters = input_batch["sampling_params"]
        requests = [
            SampleRequest(
                list(ids),
                parameters["max_tokens"],
                parameters["temperature"],
                parameters["top_p"],
                parameters["top_k"],
                tuple(parameters["stop_token_ids"]),
                tuple(parameters.get("stop") or ()),
            )
            for ids in input_batch["prompt_token_ids"]
        ]
        written = await asyncio.gather(*map(self._ask, requests))
        has_logprobs = parameters.get("logprobs") is not None
        return {
            "responses": [one.text for one in written],
            "response_ids": [one.ids for one in written],
            "stop_reasons": ["stop" if one.is_ended else "length" for one in written],
            "response_logprobs": [one.logprobs for one in written] if has_logprobs else None,
            "prompt_logprobs": None,
            "rollout_expert_indices": None,
        }

    async def wake_up(self, *_: Any, **__: Any) -> None:
        """Loads the weights that SkyRL has sent; the first time they are the initial model's."""
        await asyncio.to_thread(self._load)

    async def pause_generation(self) -> None:
        """Waits for the current batch, and begins no other; requests wait."""
        await self._turn.acquire()

    async def resume_generation(self) -> None:
        """Loads the weights that SkyRL has sent meanwhile, and resumes."""
        await asyncio.to_thread(self._load)
        self._turn.release()

    def increment_weight_version(self) -> None:
        self.weight_version += 1

    async def get_world_size(self) -> tuple[int, int]:
        return 1, 1

    async def sleep(self, *_: Any, **__: Any) -> None: ...
    async def init_weight_update_communicator(self, init_info: Any) -> None: ...
    async def teardown(self) -> None: ...
    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None: ...
    async def finish_session(self, session_id: str) -> None: ...

    async def update_named_weights(self, request: Any) -> None:
        raise NotImplementedError("a rehearsal's weights come by file")

    def get_endpoint_url(self) -> str:
        raise NotImplementedError("a rehearsal's engine has no endpoint")

    async def chat_completion(self, request_payload: Any) -> Any:
        raise NotImplementedError("a rehearsal's engine takes tokens alone")

    completion = render_chat_completion = chat_completion

    async def _ask(self, request: SampleRequest) -> SampledText:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        written: SampledText = await answer
        return written

    async def _work(self) -> None:
        while self._waiting:
            seen = 0
            while len(self._waiting) > seen:
                seen = len(self._waiting)
                await asyncio.sleep(QUIET_S)
            batch, self._waiting = self._waiting, []
            try:
                async with self._turn:
                    results = await asyncio.to_thread(self._write, [one.request for one in batch])
            except Exception as error:
                for one in batch:
                    one.answer.set_exception(error)
                continue
            for one, result in zip(batch, results, strict=True):
                if not one.answer.done():
                    one.answer.set_result(result)

    def _write(self, requests: list[SampleRequest]) -> list[SampledText]:
        if self._sampler is None:
            self._load()
        assert self._sampler is not None
        return self._sampler.write(requests)

    def _load(self) -> None:
        if self._sampler is None:
            self._sampler = Sampler(self._model, self._seed, self._num_threads)
        if self.weights.exists():
            self._sampler.take(self.weights)
