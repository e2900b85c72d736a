"""Native keys of xp's own: one that is open can be replaced, and one that is the same for every run has its reason."""

from __future__ import annotations

import pytest

from tests.support.sections import PLACES
from tools.pages import REFERENCE
from xp.backends.skyrl.control.render import native
from xp.backends.trl.control.render import grpo_config
from xp.cli.display import notice_lines
from xp.composition import compose
from xp.fields.support import Support
from xp.planning.backend import backend_of, spec_refusals
from xp.planning.plan import build_plan
from xp.spec import RunSpec

OPEN = {
    "trl": [
        ("loss_type", "bnpo", "algorithm.loss_aggregation"),
    ],
    "skyrl": [
        ("trainer.algorithm.policy_loss_type", "kl_cov", "algorithm.policy_loss"),
    ],
    "slime": [
        ("kl-loss-type", "low_var_kl", "algorithm.kl_estimator"),
        ("update-weights-interval", 2, ""),
    ],
}


def spec_of(backend: str, key: str, value: object) -> RunSpec:
    return compose(
        [*REFERENCE, f"backend={backend}", f"backend.overrides={{{key}: {value}}}".replace("'", "")]
    )


@pytest.mark.parametrize(
    ("backend", "key", "value", "field"), [(b, *one) for b, all_ in OPEN.items() for one in all_]
)
def test_an_open_key_replaces_xps_with_a_warning(
    backend: str, key: str, value: object, field: str
) -> None:
    spec = spec_of(backend, key, value)
    assert spec_refusals(spec) == []
    lines = notice_lines(build_plan(spec, "r"))
    (line,) = [line for line in lines if line.startswith("backend.overrides: ")]
    assert line.endswith(f": {key}")
    if backend != "slime":
        assert (native(spec) if backend == "skyrl" else grpo_config(spec, PLACES))[key] == value
    if field:
        meaning = backend_of(spec).meanings(spec)[field]
        assert (meaning.support, "Overridden: " in meaning.note) == (Support.EMULATED, True)
        assert str(value) in meaning.receives
