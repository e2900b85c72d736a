"""Generates with TRL's vLLM inside the training processes; TRL updates its weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from xp.lib.loopback import HOST, free_port
from xp.spec import Sampling
from xp.spec.model import Images
from xp.worker.engines.completions import sampling_parameters
from xp.worker.engines.conversation import (
    Done,
    GeneratedTurn,
    GenerationRequest,
    Opening,
    RequestEngine,
)
from xp.worker.engines.vllm_pictures import VLLMPictures, check_prompt

IDLE_S = 0.002
"""Seconds between two checks of the group, while all its episodes wait for their environments."""


class ColocatedEngine(RequestEngine):
    """The engine of a process, or of a tensor-parallel group of ranks.

    The ranks of a group compute every token together, so their engines must get the same requests in the same order:
    the ranks exchange new requests before each step. A single process has nothing to exchange.

    Args:
        generation: trl.generation.vllm_generation.VLLMGeneration in mode `colocate` (TRL 1.16.0). Its engine is kept
            for the next rollout.
        opening, end_ids, sampling, seed, is_stop: see EpisodeEngine.
        never: tokens that are never sampled.
        pictures: the pictures of the episodes. None means that there are none.
    """

    def __init__(
        self,
        generation: Any,
        opening: Opening,
        end_ids: Sequence[int],
        sampling: Sampling,
        seed: str,
        is_stop: Callable[[Sequence[int]], bool] = lambda _: False,
        never: Sequence[int] = (),
        pictures: VLLMPictures | None = None,
    ) -> None:
        super().__init__(opening, end_ids, sampling, seed, is_stop)
        self._never = never
        self._pictures = pictures
        self._engine = generation.llm.llm_engine
        self._group = generation.tp_group if generation.tensor_parallel_size > 1 else None
        self._new: list[tuple[GenerationRequest, Done]] = []
        self._pending: dict[str, tuple[GenerationRequest, Done]] = {}
        self._num_added = 0
        self._is_group_live = True

    @property
    def is_generating(self) -> bool:
        """Always true in a group, since every rank takes part until all are done."""
        return self._group is not None or bool(self._new or self._pending)

    def submit(self, request: GenerationRequest, done: Done) -> None:
        """Adds the request to the engine's next step."""
        self._new.append((request, done))

    def step(self, is_live: bool) -> None:
        """Runs one step of the engine, with all ranks of a group."""
        new = self._new
        self._new = []
        shares, here = self._gathered((is_live, [request for request, _ in new]))
        self._is_group_live = any(is_live for is_live, _ in shares)
        for rank, (_, requests) in enumerate(shares):
            for number, request in enumerate(requests):
                name = str(self._num_added)
                self._num_added += 1
                self._engine.add_request(name, self._prompt(request), self._parameters(request))
                if rank == here:
                    self._pending[name] = new[number]
        if not self._engine.has_unfinished_requests():
            time.sleep(IDLE_S)
            return
        for output in self._engine.step():
            if output.finished and output.request_id in self._pending:
                request, done = self._pending.pop(output.request_id)
                if request.pictures:
                    check_prompt(request, output.prompt_token_ids)
                done(_turn(output.outputs[0]))

    def should_continue(self, is_live: bool) -> bool:
        """Returns whether a rank of the group has an episode left."""
        if self._group is None:
            return is_live
        return self._is_group_live

    def _prompt(self, request: GenerationRequest) -> dict[str, Any]:
        if self._pictures is None:
            return {"type": "token", "prompt_token_ids": list(request.ids)}
        return self._pictures.prompt(request)

    def _parameters(self, request: GenerationRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            **sampling_parameters(self.sampling, request, self._never),
            stop_token_ids=sorted(self._end_ids),
            output_kind=RequestOutputKind.FINAL_ONLY,
            # The text is decoded from the ids at the end of the turn; vLLM's text is only for stop strings.
            detokenize=bool(self.sampling.stop),
        )

    def _gathered(self, value: Any) -> tuple[list[Any], int]:
        """Values of all ranks of the group, in order of rank, and this process's rank."""
        if self._group is None:
            return [value], 0
        import torch.distributed as dist

        values: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(values, value, group=self._group)
        return values, dist.get_rank(self._group)


def choose_port(environ: MutableMapping[str, str]) -> None:
    """Sets a random rendezvous port for a single process; TRL's choice from a list may conflict with other runs."""
    if environ.get("MASTER_PORT"):
        return  # torchrun has set it for all ranks
    environ["MASTER_ADDR"] = HOST
    environ["MASTER_PORT"] = str(free_port())


def set_vllm_arguments(dtype: str, images: Images | None) -> None:
    """Sets arguments of TRL's engine that TRL has none for.

    They are the policy's data type, since vLLM would use half of float32, and that a model with parts for pictures and
    sound is loaded without them if its prompts are text: its checkpoint may lack the files that vLLM makes them with.

    Args:
        dtype: the policy's data type.
        images: limits of pictures. None means that there are none.
    """
    from trl.generation import vllm_generation

    arguments: dict[str, Any] = {"language_model_only": True}
    if images is not None:
        arguments = {"limit_mm_per_prompt": images.vllm_limits}
    vllm_generation.LLM = partial(vllm_generation.LLM, dtype=dtype, **arguments)


@contextmanager
def awake(generation: Any) -> Iterator[None]:
    """Context manager: keeps the engine awake for all turns of a rollout; TRL would reload its weights at every
    turn."""
    if not generation.enable_sleep_mode:
        yield
        return
    if generation._llm_weights_sleeping:
        generation.sync_weights()
    generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True


def _turn(output: Any) -> GeneratedTurn:
    ids = list(output.token_ids)
    return GeneratedTurn(
        ids, [position[token].logprob for token, position in zip(ids, output.logprobs, strict=True)]
    )
