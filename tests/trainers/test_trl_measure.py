"""`parity measure` of TRL: every option within the bar, or explained."""

from __future__ import annotations

import sys

import pytest

from tools.parity.measure import measure, table, unexplained

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_every_option_is_the_papers_or_explained() -> None:
    measured = measure((), ["trl"], {"trl": sys.executable})
    print("\n".join(table(measured)))
    assert unexplained(measured) == []
