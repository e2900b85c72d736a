"""Vocabularies of two models: whether the ids of one mean the same tokens to the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.facts import fact
from xp.lib.reading import json_of

FILE: Final = "tokenizer.json"


@fact
def read_vocabulary(directory: Path) -> dict[str, int] | None:
    """Token -> id from tokenizer.json, added tokens included; None if there is no such file, or another form of it."""
    try:
        content = json_of(directory / FILE, ExitCode.CONFIG)
        tokens = content["model"]["vocab"]
        # Unigram's list has pairs of a token and its score.
        if isinstance(tokens, dict):
            ids = dict(tokens)
        else:
            ids = {pair[0]: at for at, pair in enumerate(tokens)}
        return ids | {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
    except (XpError, LookupError, TypeError, AttributeError):
        return None


def vocabulary_fault(policy: Mapping[str, int], teacher: Mapping[str, int]) -> str | None:
    """Returns why a teacher cannot score the policy's tokens; None if each has the same id there.

    The teacher may have more tokens.
    """
    differing = [token for token, number in policy.items() if teacher.get(token) != number]
    if not differing:
        return None
    first = min(differing, key=policy.__getitem__)
    if first in teacher:
        there = f"has id {teacher[first]}"
    else:
        there = "is unknown"
    return (
        f"its vocabulary has {len(teacher):,} tokens and the policy's {len(policy):,}, of which {len(differing):,} have"
        f" other ids or are unknown there: {first!r} is {policy[first]} for the policy and {there} for the teacher;"
        " choose a teacher with the policy's tokenizer"
    )
