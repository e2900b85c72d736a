"""One of verifiers' episodes as a session (xp.contrib.conversation)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from xp.contrib.conversation import ConversationSession, ModelRequest
from xp.contrib.verifiers.model import ModelEndpoint
from xp.envs.base import ProtocolError, ToolCrashed, ToolResult
from xp.envs.judges import JudgeCall, usage_of_judges


class VerifiersSession(ConversationSession):
    """See xp.envs.base.Session.

    Args:
        endpoint: endpoint of the model.
        seat: name of the model's seat.
        run: verifiers' environment, the task, and the context of the model.
        limit_s: time limit of a call, in seconds.
        prices: prices of judges and of other seats' models, see xp.envs.judges.
    """

    package = "verifiers"

    def __init__(
        self,
        endpoint: ModelEndpoint,
        seat: str,
        run: tuple[Any, Any, Any],
        limit_s: float,
        prices: Mapping[str, Sequence[float]],
    ) -> None:
        super().__init__(limit_s)
        self._endpoint = endpoint
        self._seat = seat
        self._prices = prices
        self._environment, self._task, self._context = run
        self._traces: list[Any] = []

    def _start(self, questions: asyncio.Queue[ModelRequest]) -> asyncio.Future[Any]:
        def minted(trace: Any) -> None:
            """Callback of verifiers for each seat that begins."""
            self._traces.append(trace)
            self._endpoint.expect(trace.id, questions)

        work = self._environment.run_episode(self._task, self._context, on_trace=minted)
        played: asyncio.Future[Any] = asyncio.ensure_future(work)
        return played

    def _observed(self, before: ModelRequest, request: ModelRequest) -> ToolResult:
        seats = {trace.id: trace.agent.name for trace in self._traces}
        if request.trace != before.trace and seats.get(request.trace) == self._seat:
            raise ProtocolError(
                f"the seat {self._seat} plays several times in one episode, of which xp trains one: set the number of"
                " attempts to 1 in the environment's configuration (options.config), such as"
                " env.options.config.attempts=1"
            )
        return super()._observed(before, request)

    def _end(self, episode: Any) -> ToolResult:
        """Reward of the model's seat: the weighted sum of its rewards. Raises EnvFault if anything failed."""
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            reasons = (
                "; ".join(f"{error.type}: {error.message}" for error in errors)
                or "it was not completed"
            )
            raise ToolCrashed(f"verifiers' episode failed: {reasons}")
        played = [trace for trace in episode.traces if trace.agent.name == self._seat]
        if len(played) != 1:
            raise ProtocolError(
                f"the seat {self._seat} played {len(played)} times in one episode; xp trains one"
            )
        unscored = [name for name, reward in played[0].rewards.items() if reward is None]
        if unscored:
            raise ToolCrashed(f"verifiers scored no {', '.join(unscored)}")
        judges = usage_of_judges(list(self._other_calls(episode)), self._prices)
        return ToolResult("", float(played[0].reward), finished=True, judges=judges)

    def _other_calls(self, episode: Any) -> Iterator[JudgeCall]:
        """Calls of judges and of other seats' models whose endpoints count tokens."""
        for trace in episode.traces:
            for judge_call in trace.info.get("judge_calls", ()):
                used = judge_call["response"].get("usage")
                if used:
                    read = used["prompt_tokens"] + (used.get("cached_input_tokens") or 0)
                    yield JudgeCall(
                        judge_call["request"]["model"],
                        read,
                        used["completion_tokens"],
                        used.get("cost"),
                    )
            for call in trace.calls if trace.agent.name != self._seat else ():
                if call.usage is not None:
                    usage = call.usage
                    yield JudgeCall(
                        call.model or "", usage.input_tokens, usage.completion_tokens, usage.cost
                    )

    async def _stop(self) -> None:
        for trace in self._traces:
            self._endpoint.forget(trace.id)
        if self._episode is not None:
            self._episode.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._episode
