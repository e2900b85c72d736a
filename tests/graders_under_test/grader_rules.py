"""Rules for graders that need no package of the tests' own Python."""

from __future__ import annotations

from tests.support.fake_session import RULES
from tests.support.sections import replace

GSM8K = replace(
    RULES,
    provider="local",
    grader=None,
    env_class="gsm8k",
    rows="tests.graders_under_test.graders:skyrl_rows",
)
