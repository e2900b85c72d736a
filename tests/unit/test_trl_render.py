"""RunSpec -> TRL: every knob is rendered in TRL's own unit, and what TRL cannot do is refused with the fix."""

from __future__ import annotations

import pytest

from tests.support.jobs import train_config
from tests.support.trl_choices import SEPARATE
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.planning.backend import spec_refusals


@pytest.mark.parametrize(
    "change",
    [
        "backend.engine.max_sequences=64",
        "backend.engine.max_batched_tokens=2048",
        "backend.engine.eager=true",
        "backend.engine.prefix_caching=false",
    ],
)
def test_a_server_is_told_what_a_colocated_engine_cannot_be(change: str) -> None:
    plain, changed = (
        train_config(TRLTrainConfig, compose([*SEPARATE, *more])) for more in ((), (change,))
    )
    assert plain.server != changed.server


def test_adapters_after_a_fine_tuning_have_it_as_the_reference() -> None:
    words = [
        "env=whodunit_mini",
        "sft.data=solve",
        "training.kl_coef=0.1",
        "model.lora={rank: 8, alpha: 16.0, dropout: 0.0, target_modules: null}",
    ]
    (refusal,) = spec_refusals(compose(words))
    assert "set training.reference=sft" in str(refusal)
    assert not spec_refusals(compose([*words, "training.reference=sft"]))
