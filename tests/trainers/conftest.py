"""Ray reads its settings when it is imported, so they are set here, before any test module imports it; checkouts; one
thread for torch."""

import sys
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A stage's program in this process must not set two threads: beside other tests, they spin for most of their time."""
    with pytest.MonkeyPatch.context() as patched:
        if "torch" in sys.modules:
            patched.setattr("torch.set_num_threads", lambda _: None)
        yield
