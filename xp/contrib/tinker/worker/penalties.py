"""Log-probabilities of other models on the service: a reference that lowers the rewards, and a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xp.contrib.tinker.worker.batch import Row
from xp.contrib.tinker.worker.service import Service
from xp.spec import KlEstimator, RunSpec
from xp.worker.engines.teacher import TeacherApi, check_teacher


class Penalties:
    """Scores the rows of a step with the reference and the teacher of a spec.

    Args:
        spec: the run's.
        service: the connection.
        environ: variables, one of which may have the key of a teacher's server.
        tokenizer: the policy's.
    """

    def __init__(
        self, spec: RunSpec, service: Service, environ: Mapping[str, str], tokenizer: Any
    ) -> None:
        self._spec = spec
        self._service = service
        self._reference = None
        self._teacher: Any = None
        rule = spec.algorithm.distill
        if spec.training.kl_coef > 0:
            self._reference = service.plain_sampler(service.model)
        if rule is not None:
            check_teacher(rule, tokenizer, environ)
            if rule.url is None:
                self._teacher = service.plain_sampler(rule.teacher)
            else:
                self._teacher = TeacherApi(rule, environ)

    def of_episodes(self, rows: Sequence[Row], old: Sequence[Any]) -> dict[int, float]:
        """Sum of the KL estimates of each episode's trained tokens; empty without a penalty."""
        import torch

        sums: dict[int, float] = {}
        if self._reference is None:
            return sums
        scored = self._service.logprobs(self._reference, [row.ids for row in rows])
        for row, logprobs, policy in zip(rows, scored, old, strict=True):
            gap = policy - torch.tensor(row.tail(logprobs))
            estimate = kl(self._spec.algorithm.kl_estimator, gap) * torch.tensor(row.mask)
            sums[row.episode] = sums.get(row.episode, 0.0) + float(estimate.sum())
        return sums

    def of_teacher(self, rows: Sequence[Row]) -> list[list[float]] | None:
        """The teacher's log-probabilities of the tokens after the prompt. None means that there is no teacher."""
        if self._teacher is None:
            return None
        if isinstance(self._teacher, TeacherApi):
            return self._teacher.score_all([(row.ids, len(row.mask)) for row in rows])
        scored = self._service.logprobs(self._teacher, [row.ids for row in rows])
        return [row.tail(logprobs) for row, logprobs in zip(rows, scored, strict=True)]


def kl(estimator: KlEstimator, gap: Any) -> Any:
    """Schulman's estimate of each token (http://joschu.net/blog/kl-approx.html); `gap`: policy minus reference."""
    if estimator is KlEstimator.K1:
        return gap
    if estimator is KlEstimator.K2:
        return gap.square() / 2
    return (-gap).exp() - 1 + gap
