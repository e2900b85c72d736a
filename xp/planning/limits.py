"""Proofs of refusals and of differences: the test that shows what a trainer, an engine or a model's code cannot do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from xp.lib.nested import upwards
from xp.spec import BackendName

OWN: Final = "xp"
"""Proof of a refusal that is no limit of a trainer: arithmetic, a meaning of the spec, or a part that xp lacks."""
TESTS: Final = "tests/limits"
ENGINES: Final = f"{TESTS}/test_engines.py::test_"


@dataclass(frozen=True)
class Limit:
    """The proof of one message."""

    field: str
    """Key path of the row; outside the rows, the file of the message."""
    words: str
    """A part of the message that no other message of the row or the file has."""
    proof: str
    """`OWN`, or `FILE::FUNCTION` of a test that fails where a new version has no such limit."""


def proof_of(limits: Iterable[Limit], field: str, message: str) -> str | None:
    """The proof of a message of a field. None means that nobody has looked for one."""
    above = (*upwards(field),)
    proofs = (limit.proof for limit in limits if limit.field in above and limit.words in message)
    return next(proofs, None)


def claims(note: str) -> list[str]:
    """The sentences of a note that say what a trainer does; what nobody has tried claims nothing."""
    sure = note.partition("Not tried:")[0].strip()
    return [sentence for sentence in re.split(r"(?<=\.) (?=[A-Z])", sure) if sentence]


def limits_of(backend: str) -> tuple[Limit, ...]:
    """The proofs of a backend; empty for one that is not xp's."""
    if backend not in [*BackendName]:
        return ()
    limits: tuple[Limit, ...] = import_module(f"xp.backends.{backend}.control.limits").LIMITS
    return limits


def with_proof(backend: str, field: str, message: str) -> str:
    """A refusal or a note with the tests that prove it, if it is a limit of a trainer, an engine or a card."""
    limits = (*limits_of(backend), *VALUES)
    proofs = [proof_of(limits, field, sentence) for sentence in claims(message)]
    if not any(proofs):
        proofs = [limit.proof for limit in _of_messages() if limit.words in message]
    tests = dict.fromkeys(proof for proof in proofs if proof not in (None, OWN))
    named = ", ".join(f"`{test}`" for test in tests)
    if named:
        return f"{message} (proof: {named})"
    return message


def _of_messages() -> tuple[Limit, ...]:
    """The proofs of messages outside the rows, whose module needs this one."""
    limits: tuple[Limit, ...] = import_module("xp.planning.message_limits").MESSAGES
    return limits


SHARED: Final = (
    Limit("seed", "Each turn is drawn", OWN),
    Limit("seed", "The order of tasks", OWN),
    Limit("training.max_logprob_gap", "Episodes of an older policy", OWN),
    Limit("backend.engine.expert_parallel", "must be 1, or fit", OWN),
    Limit("backend.engine.quantized_model", "vLLM quantises the model itself", OWN),
    Limit("env.options", "max_rows above 1", OWN),
    Limit("sft.batch_size", "must be divisible by", OWN),
    Limit("training.max_staleness", "colocated engines and the trainer", OWN),
)
"""Of the messages that several trainers' rows share."""

VALUES: Final = (
    Limit("algorithm.overlong", "buffer_tokens", OWN),
    Limit("backend.attention", "no FlashAttention 2", f"{ENGINES}flash_attention_needs_ampere"),
    Limit("backend.engine.expert_parallel", "is dense", OWN),
    Limit("backend.engine.expert_parallel", "must divide", OWN),
    *(
        Limit(f"backend.engine.{name}", "xp's own decoding", OWN)
        for name in ("quantization", "kv_cache_dtype", "expert_parallel", "speculative")
    ),
    Limit(
        "backend.engine.quantization",
        "weights of bfloat16",
        f"{ENGINES}fp8_weights_are_made_of_half_precision",
    ),
    *(
        Limit(f"backend.engine.{name}", "the update needs a correction", OWN)
        for name in ("quantization", "kv_cache_dtype")
    ),
    Limit(
        "backend.engine.kv_cache_dtype",
        "no attention over FP8",
        f"{ENGINES}attention_over_fp8_needs_ampere",
    ),
    Limit(
        "backend.engine.speculative",
        "no heads of multi-token prediction",
        f"{ENGINES}vllm_knows_these_families_heads",
    ),
    Limit("backend.runtime.image", "only batch jobs", OWN),
    Limit("evaluation.keep_best", "without evaluation.every", OWN),
    Limit("evaluation.patience", "without evaluation.every", OWN),
    Limit("evaluation.max_response_tokens", "of the context of", OWN),
    Limit("hardware.accelerators_per_node", "nothing to train on", OWN),
    Limit("launcher.container", "needs an image", OWN),
    Limit("model.dtype", "no bfloat16", f"{TESTS}/test_trl.py::test_bfloat16_needs_ampere"),
    Limit("model.lora", "are one matrix", OWN),
    Limit("sft.data", "so no `solve`", OWN),
    Limit("sft.max_tokens", "of the context of", OWN),
    Limit("training.budget_usd", "price", OWN),
    Limit("training.generation_prompts", "without algorithm.dynamic_sampling", OWN),
    Limit("training.group_size", "set 2 or more", OWN),
    Limit("training.max_logprob_gap", "vLLM's", f"{ENGINES}vllms_log_probabilities_are_cut"),
    Limit("training.max_response_tokens", "of the context of", OWN),
    Limit("training.max_staleness", "needs a correction", OWN),
    Limit("training.min_p", "that guess tokens", f"{ENGINES}guessed_tokens_have_no_min_p"),
    Limit("training.reference_every", "no reference to copy into", OWN),
    Limit("training.unfinished", "have ended", OWN),
)
"""Of the refusals of xp/planning/values.py and of the cards, which are the same on every backend."""
