"""Replaces SkyRL's client of vLLM, as far as a training calls it: samples on the CPU with the current weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from xp.envs.picture_store import PictureStore
from xp.episode.picture_reader import PictureReader
from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.spec.model import Images
from xp.worker.engines.conversation import EpisodeEngine, GeneratedTurn, Opening
from xp.worker.media import has_media, load_network, text_weights

QUIET_S = 0.004
"""Seconds without a further request after which a batch begins."""


@dataclass(frozen=True)
class SampleRequest:
    """Request for one turn."""

    ids: list[int]
    sampling: Sampling
    end_ids: tuple[int, ...]
    """Tokens that end the turn."""
    seed: str
    pictures: tuple[str, ...] = ()
    """Digests of the pictures of the ids."""


class Sampler:
    """A model on the CPU, with its tokenizer, that samples a batch of turns.

    Args:
        directory: directory of the model.
        num_threads: number of torch's threads.
        images: limits of pictures. None means that there are none.
    """

    def __init__(self, directory: str, num_threads: int, images: Images | None = None) -> None:
        from transformers import AutoTokenizer

        from xp.worker.engines.transformers_engine import RecomputingEngine, check_decoding

        torch.set_num_threads(num_threads)
        self._chat = ChatTokens(AutoTokenizer.from_pretrained(directory))
        self._model = load_network(directory, torch.float32).eval()
        self._kind: Callable[..., EpisodeEngine]
        if images is None:
            self._kind = check_decoding(self._model)
        else:
            store = PictureStore.of_stage()
            reader = PictureReader.load(directory, store, images, self._chat.tokenizer)
            self._kind = partial(RecomputingEngine, pictures=reader)

    def take(self, weights: Path) -> None:
        """Replaces the weights by those of a safetensors file; raises RuntimeError if the names differ."""
        from safetensors.torch import load_file

        missing, unexpected = self._model.load_state_dict(load_file(weights), strict=False)
        tied = set(getattr(self._model, "all_tied_weights_keys", {}) or {})
        if has_media(self._model.config):
            missing = [*text_weights(self._model).keys() & set(missing)]
        if unexpected or set(missing) - tied:
            raise RuntimeError(f"{weights} is not of this model: {missing=}, {unexpected=}")

    def write(self, requests: Sequence[SampleRequest]) -> list[GeneratedTurn]:
        """Generates one turn for each request; those of one kind are a batch."""
        kinds: dict[Any, list[int]] = {}
        for number, request in enumerate(requests):
            kinds.setdefault((_limited(request.sampling, 0), request.end_ids), []).append(number)
        turns: dict[int, GeneratedTurn] = {}
        for numbers in kinds.values():
            batch = self._write([requests[number] for number in numbers])
            turns |= zip(numbers, batch, strict=True)
        return [turns[number] for number in range(len(requests))]

    def _write(self, requests: Sequence[SampleRequest]) -> Iterator[GeneratedTurn]:
        """The same for requests that differ only in their limits; a turn that others outlast is cut at its own."""
        longest = max(request.sampling.max_tokens_per_turn for request in requests)
        sampling = _limited(requests[0].sampling, longest)
        prompts = [request.ids for request in requests]
        names = [request.seed for request in requests]
        pictures = [request.pictures for request in requests]
        opening = Opening(prompts, names, len(requests), lambda _: None, pictures)
        is_stop = self._chat.holds_one_of(sampling.stop)
        engine = self._kind(
            self._model, opening, requests[0].end_ids, sampling, "rehearsal", is_stop
        )
        for number in range(len(requests)):
            engine.begin(number)
        while engine.is_generating:
            engine.step(is_live=True)
        for request, turn in zip(requests, engine.conversations, strict=True):
            limit = request.sampling.max_tokens_per_turn
            yield GeneratedTurn(turn.completion_ids[:limit], turn.logprobs[:limit])


def _limited(sampling: Sampling, limit: int) -> Sampling:
    """The same sampling with another limit of a turn."""
    return sampling.model_copy(update={"max_tokens_per_turn": limit, "max_response_tokens": limit})


class CpuEngine:
    """Answers simultaneous requests as one batch. A copy in another process has only the file's path.

    Args:
        model: directory of the initial model.
        weights: file with the current weights from SkyRL's workers (weights.py).
        num_threads: number of torch's threads.
        images: limits of pictures. None means that there are none.
    """

    def __init__(
        self, model: str, weights: Path, num_threads: int, images: Images | None = None
    ) -> None:
        self.weights = weights
        self.server_urls = [str(weights)]
        self.data_parallel_size = 1
        self._model = model
        self._num_threads = num_threads
        self._images = images
        self._waiting: list[tuple[SampleRequest, asyncio.Future[GeneratedTurn]]] = []
        self._worker: asyncio.Task[None] | None = None
        self.weight_version = 0
        self._turn = asyncio.Lock()
        """Lock held while a batch is generated, or weights change."""

    def __reduce__(self) -> Any:
        return CpuEngine, (self._model, self.weights, self._num_threads, self._images)

    async def generate(self, input_batch: Any, model: str | None = None) -> Any:
        """Answers one or several requests, in SkyRL's format as far as xp's generator reads it."""
        parameters = input_batch["sampling_params"]
        sampling = (
            Sampling.model_construct(  # without validation: an evaluation's temperature may be 0
                max_prompt_tokens=1,  # it is not applied
                max_tokens_per_turn=parameters["max_tokens"],
                max_response_tokens=parameters["max_tokens"],
                temperature=parameters["temperature"],
                top_p=parameters["top_p"],
                top_k=parameters["top_k"] if parameters["top_k"] > 0 else None,
                stop=tuple(parameters.get("stop") or ()),
                min_p=parameters.get("min_p", 0.0),
                repetition_penalty=parameters.get("repetition_penalty", 1.0),
            )
        )
        end_ids = tuple(parameters["stop_token_ids"])
        seed = str(parameters["seed"])
        prompts = input_batch["prompt_token_ids"]
        features = input_batch.get("mm_features") or [{"mm_hashes": {"image": ()}}] * len(prompts)
        requests = [
            SampleRequest(list(ids), sampling, end_ids, seed, tuple(known["mm_hashes"]["image"]))
            for ids, known in zip(prompts, features, strict=True)
        ]
        written = await asyncio.gather(*map(self._ask, requests))
        has_logprobs = parameters.get("logprobs") is not None
        return {
            "response_ids": [turn.ids for turn in written],
            "response_logprobs": [turn.logprobs for turn in written] if has_logprobs else None,
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

    async def is_sleeping(self) -> bool:
        return True

    async def sleep(self, *_: Any, **__: Any) -> None: ...

    reset_prefix_cache = sleep
    finish_session = sleep

    async def _ask(self, request: SampleRequest) -> GeneratedTurn:
        answer: asyncio.Future[GeneratedTurn] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await answer

    async def _work(self) -> None:
        while self._waiting:
            seen = 0
            while len(self._waiting) > seen:
                seen = len(self._waiting)
                await asyncio.sleep(QUIET_S)
            (requests, answers), self._waiting = zip(*self._waiting, strict=True), []
            try:
                async with self._turn:
                    results = await asyncio.to_thread(self._write, requests)
            except Exception as error:
                for answer in answers:
                    answer.set_exception(error)
                continue
            for answer, result in zip(answers, results, strict=True):
                if not answer.done():
                    answer.set_result(result)

    def _write(self, requests: Sequence[SampleRequest]) -> list[GeneratedTurn]:
        return self._sampler.write(requests)

    @cached_property
    def _sampler(self) -> Sampler:
        sampler = Sampler(self._model, self._num_threads, self._images)
        if self.weights.exists():
            sampler.take(self.weights)
        return sampler

    def _load(self) -> None:
        if self.weights.exists():
            self._sampler.take(self.weights)
