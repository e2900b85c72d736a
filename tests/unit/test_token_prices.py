"""Prices of tokens: refused where nothing counts tokens, and of all lines of a run where a service does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.sections import PLACES
from tests.unit.slime_config import worker_config
from xp.composition import compose
from xp.contrib.tinker.worker.used import check_cost
from xp.errors import ExitCode, XpError
from xp.planning.backend import spec_refusals

PRICES = "hardware.usd_per_million_tokens={prompt: 1.0, sampled: 1.0, trained: 1.0}"


@pytest.mark.parametrize("backend", ["trl"])
def test_a_budget_by_tokens_is_refused_where_nothing_counts_them(backend: str) -> None:
    words = [f"backend={backend}", "hardware=h100x8", "training.budget_usd=1", PRICES]
    (refusal,) = [refusal for refusal in spec_refusals(compose(words)) if "tokens" in refusal.field]
    assert "hardware.usd_per_hour" in refusal.reason


@pytest.mark.parametrize(("budget", "is_over"), [(13.9, True), (14.1, False)])
def test_a_budget_counts_all_lines_and_expects_the_next_step_by_training_alone(
    tmp_path: Path, budget: float, is_over: bool
) -> None:
    file = tmp_path / PLACES.metrics
    file.parent.mkdir(parents=True)
    costs = [
        ("sft", 1, 4.0),
        ("sft", 2, 4.0),
        ("train", 1, 2.0),
        ("train", 2, 2.0),
    ]
    file.write_text(
        "".join(
            json.dumps(
                {
                    "stage": stage,
                    "step": step,
                    "time": 0.0,
                    "attempt": 1,
                    "cost/usd": usd,
                }
            )
            + "\n"
            for stage, step, usd in costs
        )
    )
    config = worker_config(tmp_path, 1, training__budget_usd=budget, training__checkpoint_every=1)
    if not is_over:
        check_cost(config, 2, tmp_path)
        return
    with pytest.raises(XpError, match=r"cost 12\.00 USD") as raised:
        check_cost(config, 2, tmp_path)
    assert raised.value.code is ExitCode.LIMIT
