"""An environment whose package is not in the tests' own Python."""

from __future__ import annotations

import a_package_of_another_interpreter  # noqa: F401

from tests.envs_under_test.openenv_counter import Counter

__all__ = ["Counter"]
