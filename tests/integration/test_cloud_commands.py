"""The script by which a command runs in a sandbox of a cloud, which bounds its time and output there."""

from __future__ import annotations

import shlex

import pytest

from tests.support.child import ended
from xp.contrib.harbor.cloud_host import BOUNDED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("echo one; echo 'two' >&2; exit 3", 3, "one\ntwo\n"),
        ("seq 40", 0, "1\n2\n3\n4\n5\n\n[... 91 bytes left out ...]\n\n38\n39\n40\n"),
        ("echo begun; sleep 60", 124, "begun\n"),
    ],
)
def test_the_script_of_a_command_bounds_its_time_and_output(
    command: str, code: int, output: str
) -> None:
    text = BOUNDED.format(
        command=shlex.quote(command),
        timeout_s=1.5,
        kill_s=2,
        limit=20,
        half=10,
    )
    done = ended(["bash", "-c", text])
    assert (done.returncode, done.stdout) == (code, output)
