"""What Slime cannot do, and flags that it would ignore, are refused with the field and the fix."""

from __future__ import annotations

import pytest

from tests.unit.slime_specs import SLIME
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.planning.plan import build_plan


def test_a_refused_plan_is_one_message_with_every_reason() -> None:
    with pytest.raises(XpError) as caught:
        build_plan(compose([*SLIME, "training.top_p=0.5", "training.passes_per_step=2"]), "r")
    assert caught.value.code is ExitCode.PLAN
    assert len(str(caught.value).splitlines()) == 2
