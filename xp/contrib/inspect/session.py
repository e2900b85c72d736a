"""One of inspect_ai's samples as a session (xp.contrib.conversation)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, PARTIAL, value_to_float

from xp.contrib.conversation import ConversationSession, ModelRequest
from xp.contrib.inspect.evaluation import InspectEvaluation
from xp.contrib.inspect.model import POLICY, conversations
from xp.envs.base import ProtocolError, ToolCrashed, ToolResult
from xp.envs.judges import JudgeCall, usage_of_judges

WORDS = {CORRECT, INCORRECT, NOANSWER, PARTIAL}
TRUTHS = {"yes", "no", "true", "false"}


@dataclass(frozen=True)
class ScoreChoice:
    """Choice of the score that is the reward, and the prices of judges."""

    chosen: str | None
    prices: Mapping[str, Sequence[float]]

    def reward(self, sample: EvalSample) -> float:
        """The reward of a sample; raises ToolCrashed without a score, ProtocolError for a score that is not a
        number."""
        values = {name: score.value for name, score in (sample.scores or {}).items()}
        if not values:
            raise ToolCrashed("inspect_ai scored nothing")
        flat = {name: value for name, value in values.items() if not isinstance(value, dict)} | {
            f"{name}.{key}": child
            for name, value in values.items()
            if isinstance(value, dict)
            for key, child in value.items()
        }
        name = self.chosen
        if name is None:
            if len(values) > 1 or isinstance(next(iter(values.values())), dict):
                raise ProtocolError(
                    f"there are several scores: choose by options.score one of {', '.join(sorted(flat))}"
                )
            name = next(iter(values))
        if name not in flat:
            raise ProtocolError(f"options.score={name}: the sample has {', '.join(sorted(flat))}")
        return _number(name, flat[name])


def _number(name: str, value: Any) -> float:
    """A score as a number, by inspect_ai's `value_to_float`; an unreadable score is a fault here, not 0."""
    if isinstance(value, str) and value not in WORDS and value.lower() not in TRUTHS:
        try:
            float(value)
        except ValueError:
            raise ProtocolError(f"the score {name} is {value[:40]!r}, which is no number") from None
    if not isinstance(value, str | int | float):
        raise ProtocolError(f"the score {name} is {type(value).__name__}, which is no number")
    number = float(value_to_float()(value))
    if not math.isfinite(number):
        raise ToolCrashed(f"inspect_ai's scorer {name} gave no score")
    return number


class InspectSession(ConversationSession):
    """See xp.envs.base.Session.

    Args:
        evaluation: evaluation of the sample.
        sample: sample of the task's dataset.
        scoring: choice of its reward.
        limit_s: time limit of a call, in seconds.
    """

    package = "inspect_ai"

    def __init__(
        self, evaluation: InspectEvaluation, sample: Sample, scoring: ScoreChoice, limit_s: float
    ) -> None:
        super().__init__(limit_s)
        self._evaluation = evaluation
        self._sample = sample
        self._scoring = scoring
        self._key: Any = None

    def _start(self, questions: asyncio.Queue[ModelRequest]) -> asyncio.Future[Any]:
        self._key, played = self._evaluation.play(self._sample, questions)
        return played

    def _observed(self, before: ModelRequest, request: ModelRequest) -> ToolResult:
        if request.messages[: len(before.messages)] != before.messages:
            raise ProtocolError(
                "the task asked the trained model for more than the next message of the conversation (a scorer's judge,"
                " a critique): give a judge a model of its own by options.roles"
            )
        return super()._observed(before, request)

    def _end(self, episode: EvalSample) -> ToolResult:
        if episode.error is not None:
            raise ToolCrashed(f"inspect_ai's sample failed: {episode.error.message}")
        return ToolResult(
            "", self._scoring.reward(episode), finished=True, judges=self._judges(episode)
        )

    def _judges(self, episode: EvalSample) -> dict[str, float]:
        """Tokens and price of all models that inspect_ai called, except the trained one."""
        calls = [
            JudgeCall(name, used.input_tokens, used.output_tokens, used.total_cost)
            for name, used in episode.model_usage.items()
            if name != POLICY
        ]
        return usage_of_judges(calls, self._scoring.prices)

    async def _stop(self) -> None:
        if self._key is not None:
            conversations.forget(self._key)
