"""One turn of the policy, from SGLang's /generate behind Slime's router: token ids in, token ids and log-probs out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xp.errors import ExitCode, XpError

TURN_S: Final = 3600.0
"""Seconds that a turn may take, in the engine's queue too, after which the engine counts as hanging."""


@dataclass(frozen=True)
class EngineTurn:
    """The policy's output of one turn."""

    ids: list[int]
    logprobs: list[float]
    """Log-probability of each token, under the sampling temperature."""
    text: str
    meta: Mapping[str, Any]
    """SGLang's `meta_info`, for Slime's own bookkeeping."""

    @property
    def last_id(self) -> int | None:
        return self.ids[-1] if self.ids else None

    @property
    def is_aborted(self) -> bool:
        """True if Slime has enough episodes and stopped the engines."""
        finish: str = self.meta["finish_reason"]["type"]
        return finish == "abort"


async def write_turn(
    args: Any, sample: Any, sampling: Mapping[str, Any], max_tokens: int, end_ids: Sequence[int]
) -> EngineTurn:
    """Generates the policy's next turn, which continues `sample.tokens`.

    Slime repeats a request that fails, for a minute: the router gives it to another engine, which has the same weights.
    A refused request (400 to 499) raises at once, because no engine is at fault.

    Args:
        args: Slime's.
        sample: its tokens are the context; its session_id keeps the turns of an episode on one engine.
        sampling: Slime's sampling parameters; SGLang refuses a name that it does not know.
        max_tokens: largest number of tokens of the turn.
        end_ids: tokens that end a turn.

    Raises:
        XpError: (ENGINE) all attempts failed, or the turn took too long.
    """
    from httpx import HTTPStatusError, TransportError
    from slime.utils.http_utils import post

    payload: dict[str, Any] = {
        "input_ids": list(sample.tokens),
        "sampling_params": {**sampling, "max_new_tokens": max_tokens, "stop_token_ids": list(end_ids)},
        "return_logprob": True,
    }
    if args.use_rollout_routing_replay:
        payload["return_routed_experts"] = True
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    try:
        output = await asyncio.wait_for(post(url, payload, headers=_routing(args, sample)), TURN_S)
    except TimeoutError:
        raise _lost(f"a turn took longer than {TURN_S:g} s") from None
    except HTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        raise _lost(f"{error.response.status_code} {error.response.text[:200]}") from error
    except TransportError as error:
        raise _lost(f"{type(error).__name__} {error}") from error
    rows: Sequence[Sequence[Any]] = output["meta_info"].get("output_token_logprobs") or []
    return EngineTurn(
        [int(row[1]) for row in rows], [float(row[0]) for row in rows], output["text"], output["meta_info"]
    )


def _lost(fault: str) -> XpError:
    return XpError(f"no engine answered: {fault.strip()}; SGLang's output is in this log", ExitCode.ENGINE)


def _routing(args: Any, sample: Any) -> dict[str, str] | None:
    is_sticky = sample.session_id and getattr(args, "router_policy", None) == "consistent_hashing"
    return {"X-SMG-Routing-Key": sample.session_id} if is_sticky else None
