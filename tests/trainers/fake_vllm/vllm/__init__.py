"""Stands where vLLM cannot run: the parts of its offline engine that TRL 1.16 and xp call, on a transformers model.

It holds callers to vLLM's own terms: weights and cache must be awake when they are used, the ranks of a tensor-parallel
group must ask for the same at the same time, and weights that were put to sleep at level 2 are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

__version__ = "0.22.0"


@dataclass(frozen=True)
class SamplingParams:
    n: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    max_tokens: int
    seed: int
    logprobs: int
    stop_token_ids: list[int]
    output_kind: str
    detokenize: bool


class RequestOutput:
    def __init__(self, request_id: str, output: Any) -> None:
        self.request_id = request_id
        self.outputs = [output]
        self.finished = True


@dataclass
class Request:
    """One that is being written."""

    name: str
    prompt: list[int]
    params: SamplingParams
    random: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)


class LLM:
    made: ClassVar[list[LLM]] = []

    def __init__(self, model: str, tensor_parallel_size: int, **given: Any) -> None:
        from transformers import AutoModelForCausalLM

        self.given = given
        self._model = AutoModelForCausalLM.from_pretrained(model).eval()
        self._is_sharded = tensor_parallel_size > 1
        self._requests: list[Request] = []
        self._awake = {"weights", "kv_cache"}
        self.log: list[str] = []
        """Every call, in order."""
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=worker),
            add_request=self._add,
            has_unfinished_requests=lambda: bool(self._requests),
            step=self._step,
        )
        LLM.made.append(self)

    def sleep(self, level: int) -> None:
        self.log.append("sleep")
        self._awake.clear()
        if level == 2:
            with torch.no_grad():
                for parameter in self._model.parameters():
                    parameter.fill_(float("nan"))

    def wake_up(self, tags: list[str]) -> None:
        self.log.append(f"wake {','.join(tags)}")
        self._awake |= set(tags)

    def reset_prefix_cache(self) -> None:
        self.log.append("reset")

    def _add(self, request_id: str, prompt: Any, params: SamplingParams) -> None:
        assert prompt["type"] == "token"
        random = torch.Generator().manual_seed(params.seed)
        self._requests.append(
            Request(
                request_id,
                prompt["prompt_token_ids"],
                params,
                random,
            )
        )

    def _step(self) -> list[RequestOutput]:
        """A token for every request; the ranks of a group compute it together."""
        assert self._awake == {"weights", "kv_cache"}, f"only {self._awake} is awake"
        self.log.append(f"step {len(self._requests)}")
        if self._is_sharded:
            everyone: list[Any] = [None] * torch.distributed.get_world_size()
            own = [(one.name, one.prompt, one.ids, one.params) for one in self._requests]
            torch.distributed.all_gather_object(everyone, own)
            assert all(one == everyone[0] for one in everyone), (
                "the group's ranks ask for different things"
            )
        ended = [one for one in self._requests if self._one(one)]
        self._requests = [one for one in self._requests if one not in ended]
        return [
            RequestOutput(one.name, SimpleNamespace(token_ids=one.ids, logprobs=one.logprobs))
            for one in ended
        ]

    @torch.no_grad()
    def _one(self, request: Request) -> bool:
        logits = (
            self._model(input_ids=torch.tensor([[*request.prompt, *request.ids]]))
            .logits[0, -1]
            .float()
        )
        scores = torch.log_softmax(logits / request.params.temperature, -1)
        token = int(torch.multinomial(scores.exp(), 1, generator=request.random))
        request.ids.append(token)
        request.logprobs.append({token: SimpleNamespace(logprob=float(scores[token]), rank=1)})
        return (
            len(request.ids) >= request.params.max_tokens or token in request.params.stop_token_ids
        )

    @torch.no_grad()
    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        assert "weights" in self._awake, "weights are loaded into memory that is not mapped"
        own = dict(self._model.named_parameters())
        for name, weight in weights:
            own[name].copy_(weight)
        if self.log[-1:] != ["load"]:
            self.log.append("load")
