"""`parity measure` of SkyRL: every option within the bar, or explained."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from xp.cli.parity_measure import measure, table, unexplained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_every_option_is_the_papers_or_explained() -> None:
    measured = measure((), ["skyrl"], {"skyrl": sys.executable})
    print("\n".join(table(measured)))
    assert unexplained(measured) == []
