"""One turn of the policy, from SGLang's /generate behind Slime's router: token ids in, token ids and log-probs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
        """Slime has enough episodes and stopped the engines."""
        finish: str = self.meta["finish_reason"]["type"]
        return finish == "abort"


async def write_turn(
    args: Any, sample: Any, sampling: Mapping[str, Any], max_tokens: int, end_ids: Sequence[int]
) -> EngineTurn:
    """Let the policy go on after `sample.tokens`.

    An engine that fails raises once Slime's own repeats are used up: it is no fault of the environment, and ends the
    run instead of the episode.

    Args:
        args: Slime's.
        sample: whose tokens are the context; its session_id keeps the turns of an episode on one engine.
        sampling: Slime's sampling parameters; SGLang refuses a name that it does not know.
        max_tokens: at most so many.
        end_ids: tokens that end a turn.
    """
    from slime.utils.http_utils import post

    payload: dict[str, Any] = {
        "input_ids": list(sample.tokens),
        "sampling_params": {**sampling, "max_new_tokens": max_tokens, "stop_token_ids": list(end_ids)},
        "return_logprob": True,
    }
    if args.use_rollout_routing_replay:
        payload["return_routed_experts"] = True
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    output = await post(url, payload, headers=_routing(args, sample))
    rows: Sequence[Sequence[Any]] = output["meta_info"].get("output_token_logprobs") or []
    return EngineTurn(
        [int(row[1]) for row in rows], [float(row[0]) for row in rows], output["text"], output["meta_info"]
    )


def _routing(args: Any, sample: Any) -> dict[str, str] | None:
    is_sticky = sample.session_id and getattr(args, "router_policy", None) == "consistent_hashing"
    return {"X-SMG-Routing-Key": sample.session_id} if is_sticky else None
