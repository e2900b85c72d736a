"""Stands where vLLM cannot run: the parts of its offline engine that TRL 1.16 and xp call, on a transformers model.

It holds callers to vLLM's own terms: weights and cache must be awake when they are used, the ranks of a tensor-parallel
group must ask for the same at the same time, and weights that were put to sleep at level 2 are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    max_tokens: int
    logprobs: int
    stop_token_ids: list[int]


class RequestOutput:
    def __init__(self, prompt_token_ids: list[int], output: Any) -> None:
        self.prompt_token_ids, self.outputs = prompt_token_ids, [output]


class LLM:
    made: ClassVar[list[LLM]] = []

    def __init__(self, model: str, tensor_parallel_size: int, seed: int, **given: Any) -> None:
        from transformers import AutoModelForCausalLM

        self.given = given
        self._model = AutoModelForCausalLM.from_pretrained(model).eval()
        self._is_sharded = tensor_parallel_size > 1
        self._generator = torch.Generator().manual_seed(seed)
        self._awake = {"weights", "kv_cache"}
        self.log: list[str] = []
        """Every call, in order."""
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
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

    def generate(self, prompts: list[Any], sampling_params: list[SamplingParams], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        assert self._awake == {"weights", "kv_cache"}, f"only {self._awake} is awake"
        assert len(prompts) == len(sampling_params)
        self.log.append(f"generate {len(prompts)}")
        if self._is_sharded:
            everyone: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(everyone, [prompts, sampling_params])
            assert all(one == everyone[0] for one in everyone), "the group's ranks ask for different things"
        return [
            self._one(prompt["prompt_token_ids"], params)
            for prompt, params in zip(prompts, sampling_params, strict=True)
        ]

    @torch.no_grad()
    def _one(self, prompt: list[int], params: SamplingParams) -> RequestOutput:
        ids: list[int] = []
        logprobs = []
        while len(ids) < params.max_tokens and (not ids or ids[-1] not in params.stop_token_ids):
            logits = self._model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, -1].float()
            scores = torch.log_softmax(logits / params.temperature, -1)
            token = int(torch.multinomial(scores.exp(), 1, generator=self._generator))
            ids.append(token)
            logprobs.append({token: SimpleNamespace(logprob=float(scores[token]), rank=1)})
        return RequestOutput(prompt, SimpleNamespace(token_ids=ids, logprobs=logprobs))

    @torch.no_grad()
    def _load(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        assert "weights" in self._awake, "weights are loaded into memory that is not mapped"
        own = dict(self._model.named_parameters())
        for name, weight in weights:
            own[name].copy_(weight)
        if self.log[-1:] != ["load"]:
            self.log.append("load")
