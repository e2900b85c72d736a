"""Which fields a launcher's section may have: one that would be ignored is refused."""

from __future__ import annotations

import pytest

from tests.support.launching import launcher_spec


@pytest.mark.parametrize("name", ["local", "ray", "slurm", "modal"])
def test_every_launcher_has_an_option(name: str) -> None:
    assert launcher_spec(name).name == name
