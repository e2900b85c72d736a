"""Proofs of refusals and of differences: the test that shows what a trainer, an engine or a model's code cannot do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from xp.lib.nested import upwards

OWN: Final = "xp"
"""Proof of a refusal that is no limit of a trainer: arithmetic, a meaning of the spec, or a part that xp lacks."""
TESTS: Final = "tests/limits"


@dataclass(frozen=True)
class Limit:
    """The proof of one message of one row."""

    field: str
    """Key path of the row."""
    words: str
    """A part of the message that no other message of the row has."""
    proof: str
    """`OWN`, or `FILE::FUNCTION` of a test that fails where a new version has no such limit."""


def proof_of(limits: Iterable[Limit], field: str, message: str) -> str | None:
    """The proof of a message of a field. None means that nobody has looked for one."""
    above = (*upwards(field),)
    proofs = (limit.proof for limit in limits if limit.field in above and limit.words in message)
    return next(proofs, None)


SHARED: Final = (
    Limit("backend.engine.expert_parallel", "must be 1, or fit", OWN),
    Limit("backend.engine.quantized_model", "vLLM quantises the model itself", OWN),
    Limit("env.options", "max_rows above 1", OWN),
    Limit("sft.batch_size", "must be divisible by", OWN),
    Limit("training.max_staleness", "colocated engines and the trainer", OWN),
)
"""Of the messages that several trainers' rows share."""
