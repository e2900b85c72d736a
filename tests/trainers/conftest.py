"""Ray reads its settings when it is imported, so they are set here, before any test module imports it; checkouts."""

from importlib.util import find_spec

import pytest

from tests.trainers.pins import wrong_checkouts
from xp.lib import private_ray

if find_spec("skyrl") is not None:
    private_ray.close_to_others()


def pytest_sessionstart() -> None:
    """Stops where a checkout is at another commit than its pin: its tests would fail one by one, without the reason."""
    if wrong := wrong_checkouts():
        pytest.exit(
            "\n".join([*wrong, "XP_TEST_ANY_COMMIT=1 runs the tests all the same"]), returncode=4
        )
