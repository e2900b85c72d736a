"""A step's rows with old log-probabilities, and advantages of tokens that make the spec's loss of the service's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.contrib.tinker.worker.batch import Row, factors, token_losses, undone
from xp.contrib.tinker.worker.penalties import Penalties
from xp.contrib.tinker.worker.service import Service, TinkerTrainConfig, datum
from xp.episode.advantages import DISTILL_KL, distilled, estimator_of, of_valid
from xp.episode.metrics import EpisodeFacts
from xp.spec import AdvantageScale
from xp.worker.importance import metrics as importance_metrics
from xp.worker.importance import weigh

GAP: Final = "training/logprob_gap"


class StepBatch:
    """What the updates of a step are made of.

    Args:
        service: the connection.
        config: input of the training.
        penalties: reference and teacher.
        rows: rows with trained tokens.
    """

    def __init__(
        self,
        service: Service,
        config: TinkerTrainConfig,
        penalties: Penalties,
        rows: Sequence[Row],
    ) -> None:
        import torch

        self._service = service
        self._spec = config.spec
        self._requests = config.requests
        self._penalties = penalties
        self._rows = rows
        self._masks = [torch.tensor(row.mask) for row in rows]
        self._engine = [torch.tensor(row.logprobs) for row in rows]
        self._old = self._engine
        """Old log-probabilities of the ratio."""
        self._advantages: list[Any] = []
        """Of each row's tokens after the prompt."""

    def prepare(self, client: Any, played: Sequence[EpisodeFacts]) -> dict[str, float]:
        """Computes the old log-probabilities and the advantages; returns metrics.

        Args:
            client: the training client, before the step's first update.
            played: all episodes of the step.
        """
        if not self._rows:
            return {}
        before = self._engine
        line: dict[str, float] = {}
        if self._requests["forward"]:
            before = self._forward(client)
            line[GAP] = self._mean_gap(before)
        if self._requests["old_logprobs"] == "trainer":
            self._old = before
        sums = self._penalties.of_episodes(self._rows, before)
        if sums:
            line["training/kl"] = sum(sums.values()) / self._num_tokens(range(len(self._rows)))
        of_episodes = self._of_episodes(played, sums)
        self._advantages = [
            of_episodes[row.episode] * mask
            for row, mask in zip(self._rows, self._masks, strict=True)
        ]
        line |= self._weigh(before)
        line |= self._distill(before)
        return line

    def data(self, chosen: Sequence[int]) -> tuple[list[Any], list[float]]:
        """Data of an update's request, and the factor of each row's losses in the spec's mean."""
        rows = [self._rows[at] for at in chosen]
        spec = self._spec
        length = spec.algorithm.loss_length or spec.training.max_response_tokens
        of_rows = factors(spec.algorithm, length, rows)
        undo = undone(self._service.reduction, [len(row.ids) for row in rows])
        data = [
            datum(
                row.ids,
                logprobs=self._old[at].tolist(),
                advantages=(self._advantages[at] * mean * factor).tolist(),
            )
            for at, row, mean, factor in zip(chosen, rows, of_rows, undo, strict=True)
        ]
        return data, of_rows

    def metrics(
        self, chosen: Sequence[int], of_rows: Sequence[float], outputs: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Loss, share of clipped tokens, and the gap to the engine, of an update's log-probabilities."""
        import torch

        loss = 0.0
        clipped = 0.0
        gap = 0.0
        for at, mean, output in zip(chosen, of_rows, outputs, strict=True):
            mask = self._masks[at]
            logprobs = torch.tensor(self._rows[at].tail(output))
            advantages = self._advantages[at]
            losses, is_cut = token_losses(self._requests, logprobs, self._old[at], advantages)
            loss += mean * float((losses * mask).sum())
            clipped += float((is_cut * mask).sum())
            gap += float(((logprobs - self._engine[at]).abs() * mask).sum())
        num_tokens = self._num_tokens(chosen)
        return {
            "training/loss": loss,
            "training/clip_fraction": clipped / num_tokens,
            GAP: gap / num_tokens,
        }

    def first_gap(self, values: Mapping[str, float]) -> dict[str, float]:
        """The gap of the step's first update, whose log-probabilities are those before it, if none was measured."""
        return {} if self._requests["forward"] else {GAP: values[GAP]}

    def _forward(self, client: Any) -> list[Any]:
        """The trainer's log-probabilities of each row's tokens after the prompt."""
        import torch

        zeros = [[0.0] * len(row.mask) for row in self._rows]
        data = [
            datum(row.ids, logprobs=zero, advantages=zero)
            for row, zero in zip(self._rows, zeros, strict=True)
        ]
        self._service.used.add(prompt=sum(len(row.ids) for row in self._rows))
        answer = self._service.wait(client.forward(data, "importance_sampling"), "a forward pass")
        outputs = [output["logprobs"].data for output in answer.loss_fn_outputs]
        return [
            torch.tensor(row.tail(output)) for row, output in zip(self._rows, outputs, strict=True)
        ]

    def _of_episodes(
        self, played: Sequence[EpisodeFacts], sums: Mapping[int, float]
    ) -> list[float]:
        """Advantage of each episode of the step."""
        spec = self._spec
        algorithm = spec.algorithm
        num_tokens = [0] * len(played)
        for row in self._rows:
            num_tokens[row.episode] += sum(row.mask)
        rewards = [facts.outcome.reward for facts in played]
        lowered = [
            None if reward is None else reward - spec.training.kl_coef * sums.get(number, 0.0)
            for number, reward in enumerate(rewards)
        ]
        groups = [str(number // spec.training.group_size) for number in range(len(played))]
        by_std = algorithm.advantage_scale is AdvantageScale.GROUP_STD
        return of_valid(estimator_of(algorithm, by_std=by_std), lowered, groups, num_tokens)

    def _weigh(self, before: Sequence[Any]) -> dict[str, float]:
        """Multiplies the advantages by the importance weights, which are of whole episodes."""
        import torch

        algorithm = self._spec.algorithm
        if not algorithm.is_corrected:
            return {}
        sums = []
        for members in self._by_episode().values():
            gap = torch.cat([before[at] - self._engine[at] for at in members])
            result = weigh(algorithm, gap, torch.cat([self._masks[at] for at in members]))
            sums.append(torch.stack(result.sums()))
            parts = result.weights.split([len(self._rows[at].mask) for at in members])
            for at, weights in zip(members, parts, strict=True):
                self._advantages[at] = self._advantages[at] * weights
        return importance_metrics(torch.stack(sums).sum(0).tolist())

    def _distill(self, before: Sequence[Any]) -> dict[str, float]:
        """Adds the teacher's part to the advantages."""
        import torch

        rule = self._spec.algorithm.distill
        teacher = self._penalties.of_teacher(self._rows)
        if rule is None or teacher is None:
            return {}
        total = 0.0
        for at, logprobs in enumerate(teacher):
            scored = torch.tensor(logprobs)
            advantages = self._advantages[at]
            mask = self._masks[at]
            self._advantages[at], gap = distilled(rule, advantages, scored, before[at], mask)
            total += float(gap)
        return {DISTILL_KL: total / self._num_tokens(range(len(self._rows)))}

    def _mean_gap(self, logprobs: Sequence[Any]) -> float:
        parts = zip(logprobs, self._engine, self._masks, strict=True)
        total = sum(
            float(((trainer - engine).abs() * mask).sum()) for trainer, engine, mask in parts
        )
        return total / self._num_tokens(range(len(self._rows)))

    def _num_tokens(self, chosen: Sequence[int]) -> int:
        return max(1, sum(int(self._masks[at].sum()) for at in chosen))

    def _by_episode(self) -> dict[int, list[int]]:
        """Episode -> numbers of its rows."""
        members: dict[int, list[int]] = {}
        for at, row in enumerate(self._rows):
            members.setdefault(row.episode, []).append(at)
        return members
