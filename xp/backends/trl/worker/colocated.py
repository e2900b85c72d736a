"""Writes with the vLLM that TRL keeps inside the training processes; its weights are TRL's to bring up to date."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.writing import GeneratedTurn, GenerationRequest
from xp.security.loopback import HOST, free_port


class ColocatedWriter:
    """The engine of a tensor-parallel group of ranks: all of them call it with all of the group's sequences, in step.

    Args:
        generation: trl.generation.vllm_generation.VLLMGeneration in mode `colocate` (TRL 1.16.0).
        sampling: temperature and cuts.
        end_ids: tokens that end a turn.
    """

    def __init__(self, generation: Any, sampling: TRLSampling, end_ids: Sequence[int]) -> None:
        self._llm = generation.llm
        self._group = generation.tp_group if generation.tensor_parallel_size > 1 else None
        self._sampling, self._end_ids = sampling, list(end_ids)

    def write(self, requests: Sequence[GenerationRequest]) -> list[GeneratedTurn]:
        """Each request has a limit of its own, which TRL's own `generate` does not know."""
        shares = self._gathered([(list(one.ids), one.max_tokens) for one in requests])
        begin = sum(len(share) for share in shares[: self._own_place()])
        everyone = [one for share in shares for one in share]
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids, _ in everyone],
            sampling_params=[self._parameters(limit) for _, limit in everyone],
            use_tqdm=False,
        )
        return [_written(output.outputs[0]) for output in outputs[begin : begin + len(requests)]]

    def goes_on(self, is_live: bool) -> bool:
        """Until no rank of the group has a conversation left."""
        return any(self._gathered(is_live))

    def _parameters(self, max_tokens: int) -> Any:
        from vllm import SamplingParams

        sampling = self._sampling
        return SamplingParams(
            n=1,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or 0,
            max_tokens=max_tokens,
            logprobs=0,
            stop_token_ids=self._end_ids,
            **({"stop": list(sampling.stop), "include_stop_str_in_output": True} if sampling.stop else {}),
        )

    def _gathered(self, value: Any) -> list[Any]:
        """What every rank of the group says, in their order."""
        if self._group is None:
            return [value]
        import torch.distributed

        values: list[Any] = [None] * torch.distributed.get_world_size(self._group)
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def _own_place(self) -> int:
        if self._group is None:
            return 0
        import torch.distributed

        return int(torch.distributed.get_rank(self._group))


def choose_port(environ: MutableMapping[str, str]) -> None:
    """Give a single process a rendezvous port of its own; TRL takes the first free one of a list, as others do."""
    if environ.get("MASTER_PORT"):
        return  # torchrun's, of all ranks
    environ["MASTER_ADDR"], environ["MASTER_PORT"] = HOST, str(free_port())


def let_trl_say(dtype: str) -> None:
    """Make TRL's engine compute in the policy's type: TRL has no argument for it, and vLLM would halve float32."""
    from trl.generation import vllm_generation

    vllm_generation.LLM = partial(vllm_generation.LLM, dtype=dtype)


@contextmanager
def awake(generation: Any) -> Iterator[None]:
    """Keep the engine awake for all turns of a rollout; TRL would discard and reload its weights at every turn."""
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


def _written(output: Any) -> GeneratedTurn:
    ids = list(output.token_ids)
    return GeneratedTurn(ids, [position[token].logprob for token, position in zip(ids, output.logprobs, strict=True)])
