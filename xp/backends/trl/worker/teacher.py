"""The teacher of on-policy distillation under TRL: beside the policy in each training process, or on a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from trl.models import prepare_fsdp
from trl.trainer.utils import add_fused_lm_head

from xp.spec import Distill
from xp.worker.engines.teacher import TeacherApi, check_teacher
from xp.worker.media import load_network
from xp.worker.network import disable_dropout
from xp.worker.places import teacher_place

Scorer = Callable[[Any], torch.Tensor]
"""Function from a model to its log-probabilities of the completions, shaped (episodes, tokens)."""


class Teacher:
    """A model without gradients, or a client of one; must be called by all ranks.

    Args:
        rule: the distillation.
        environ: variables, one of which may have the server's key.
        tokenizer: the policy's.
        dtype: data type of the teacher's weights.

    Raises:
        XpError: (CONFIG) the teacher has another vocabulary than the policy.
    """

    def __init__(
        self, rule: Distill, environ: Mapping[str, str], tokenizer: Any, dtype: torch.dtype
    ) -> None:
        self.rule = rule
        self.model: Any = None
        check_teacher(rule, tokenizer, environ)
        if rule.url is not None:
            self._api = TeacherApi(rule, environ)
            return
        self.model = load_network(teacher_place(rule), dtype).eval().requires_grad_(False)
        disable_dropout(self.model)

    def prepare(self, trainer: Any) -> None:
        """Places the model as GRPOTrainer places its reference model."""
        if self.model is None:
            return
        add_fused_lm_head(self.model, temperature=trainer.temperature)
        if trainer.is_fsdp_enabled:
            self.model = prepare_fsdp(self.model, trainer.accelerator)
        else:
            self.model = trainer.accelerator.prepare_model(self.model, evaluation_mode=True)

    def logprobs(self, output: Mapping[str, Any], scorer: Scorer) -> torch.Tensor:
        """The teacher's log-probabilities of TRL's completions, 0 where there is no token."""
        if self.model is not None:
            return scorer(self.model)
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        samples = zip(*(output[name] for name in names), strict=True)
        sequences = []
        for prompt, in_prompt, completion, in_completion in samples:
            scored = completion[in_completion > 0].tolist()
            sequences.append(([*prompt[in_prompt > 0].tolist(), *scored], len(scored)))
        result = torch.zeros(output["completion_ids"].shape, device=output["completion_ids"].device)
        for scores, logprobs in zip(result, self._api.score_all(sequences), strict=True):
            scores[: len(logprobs)] = torch.tensor(logprobs)
        return result
