"""Which SkyRL these tests run against: the wheel, or the checkout that SKYRL_PATH names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")


def test_the_checkout_is_what_is_tested() -> None:
    import skyrl
    import skyrl_gym

    checkout = os.environ.get("SKYRL_PATH")
    if not checkout:
        pytest.skip("SKYRL_PATH names no checkout of SkyRL: the wheel alone was tested")
    for package in (skyrl, skyrl_gym):
        assert Path(package.__file__ or "").is_relative_to(Path(checkout).absolute())
