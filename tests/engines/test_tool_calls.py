"""Whole calls in each dialect, read by the parsers of the engine that is here (make test-vllm, make test-sglang)."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from tools.tool_calls import ENGINES, PARSERS, kind, texts, xp_outcome

ENGINE = next((engine for engine in ENGINES if find_spec(engine)), "")
DIFFERENT = {
    ("vllm", "gemma"): "other arguments",  # values within objects and lists are texts
    ("vllm", "pythonic"): "only xp calls",  # the list must be the whole turn
    ("sglang", "gemma"): "other arguments",  # 1e-09 and nested null are texts
    ("sglang", "glm"): "other arguments",  # the text `true` becomes `True`
    ("sglang", "llama_json"): "only xp calls",  # the object must begin the turn
    ("sglang", "pythonic"): "only xp calls",
}
"""Differences in whole calls, which docs/configuration.md lists."""

pytestmark = [pytest.mark.skipif(not ENGINE, reason="needs vLLM or SGLang"), pytest.mark.slow]


@pytest.mark.parametrize("dialect", PARSERS)
def test_the_engines_parser_reads_whole_calls_as_xp_does(dialect: str) -> None:
    if ENGINE == "vllm" and dialect == "cohere":
        pytest.importorskip("cohere_melody", reason="vLLM's parser of Cohere's calls needs it")
    batch = texts(dialect, 300)[::3]
    outcomes = json.loads(json.dumps(ENGINES[ENGINE](dialect, batch)))
    kinds = {
        kind(xp_outcome(dialect, text), theirs)
        for text, theirs in zip(batch, outcomes, strict=True)
    }
    assert kinds == {"same", DIFFERENT.get((ENGINE, dialect), "same")}
