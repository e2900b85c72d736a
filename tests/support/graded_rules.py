"""Rules of episodes that a grader of tests/graders_under_test scores."""

from __future__ import annotations

from tests.support.ors_server import rules
from xp.envs.config import EnvConfig

MODULE = "tests.graders_under_test.graders"


def graded(grader: str, **changes: object) -> EnvConfig:
    return rules(
        provider="local", grader=f"{MODULE}:{grader}", **{"rows": f"{MODULE}:rows", **changes}
    )
