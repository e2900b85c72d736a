"""One turn of the policy, from SGLang's /generate behind Slime's router: token ids in, token ids and log-probs out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.backends.slime.worker.pictures import PictureRequest
from xp.errors import ExitCode, XpError
from xp.worker.engines.conversation import GeneratedTurn

TURN_S: Final = 3600.0
"""Seconds that a turn may take, in the engine's queue too, after which the engine counts as hanging."""


async def write_turn(
    args: Any,
    ids: Sequence[int],
    session: str | None,
    sampling: Mapping[str, Any],
    max_tokens: int,
    end_ids: Sequence[int],
    pictures: PictureRequest | None = None,
) -> tuple[GeneratedTurn, Mapping[str, Any]]:
    """Generates the policy's next turn; returns it with SGLang's `meta_info`.

    Slime repeats a request that fails, for a minute: the router gives it to another engine, which has the same weights.
    A refused request (400 to 499) raises at once, because no engine is at fault.

    Args:
        args: Slime's.
        ids: tokens of the context.
        session: id that keeps the turns of an episode on one engine.
        sampling: Slime's sampling parameters; SGLang refuses a name that it does not know.
        max_tokens: largest number of tokens of the turn.
        end_ids: tokens that end a turn.
        pictures: the pictures of the context. None means that it has none.

    Raises:
        XpError: (ENGINE) all attempts failed, or the turn took too long.
        PictureMismatch: the engine read other tokens of a context with pictures.
    """
    from httpx import HTTPStatusError, TransportError
    from slime.utils.http_utils import post

    payload: dict[str, Any] = {
        "input_ids": list(ids),
        "sampling_params": {
            **sampling,
            "max_new_tokens": max_tokens,
            "stop_token_ids": list(end_ids),
        },
        "return_logprob": True,
    }
    if pictures is not None:
        payload |= pictures.fields
    if args.use_rollout_routing_replay:
        payload["return_routed_experts"] = True
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    try:
        output = await asyncio.wait_for(post(url, payload, headers=_routing(args, session)), TURN_S)
    except TimeoutError:
        raise _lost(f"a turn took longer than {TURN_S:g} s") from None
    except HTTPStatusError as error:
        if error.response.status_code < 500:
            raise
        raise _lost(f"{error.response.status_code} {error.response.text[:200]}") from error
    except TransportError as error:
        raise _lost(f"{type(error).__name__} {error}") from error
    meta = output["meta_info"]
    if pictures is not None and meta["finish_reason"]["type"] != "abort":
        pictures.check(meta["prompt_tokens"])
    entries: Sequence[Sequence[Any]] = meta.get("output_token_logprobs") or []
    ids = [int(entry[1]) for entry in entries]
    return GeneratedTurn(ids, [float(entry[0]) for entry in entries]), meta


def _lost(fault: str) -> XpError:
    return XpError(
        f"no engine answered: {fault.strip()}; SGLang's output is in this log", ExitCode.ENGINE
    )


def _routing(args: Any, session: str | None) -> dict[str, str] | None:
    if session and getattr(args, "router_policy", None) == "consistent_hashing":
        return {"X-SMG-Routing-Key": str(session)}
    return None
