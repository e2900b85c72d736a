"""Contract suites that the author of a plugin runs with pytest (docs/extending.md)."""

import sys

pytest = sys.modules.get("pytest")
if pytest is not None:
    for suite in ("backend", "launcher", "provider"):
        pytest.register_assert_rewrite(f"xp.contrib.contracts.{suite}")
