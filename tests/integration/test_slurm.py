"""`launcher=slurm` against a real Slurm of one node, which tests/slurm/setup.sh makes as root."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.contracts.test_launcher import LauncherContract
from tests.detaching import DetachingContract
from tests.launching import launcher_spec
from xp.launchers.base import Context, Launcher
from xp.launchers.slurm import SlurmLauncher

SETUP = Path(__file__).parent.parent / "slurm" / "setup.sh"


def has_slurm() -> bool:
    """Whether a node is up."""
    if shutil.which("sinfo") is None:
        return False
    found = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, timeout=30)
    return found.returncode == 0 and bool(found.stdout.strip())


pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.skipif(not has_slurm(), reason=f"no Slurm here; as root: {SETUP}"),
]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets files of a test lie in a home of its own, which the one node sees."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    return made


class TestSlurmLauncher(LauncherContract):
    """`launcher=slurm`."""

    start_s = 20.0

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return SlurmLauncher(launcher_spec("slurm", grace_s=1.0), tmp_path / "outputs")

    @pytest.fixture
    def context(self, tmp_path: Path) -> Context:
        return self.make_context(tmp_path)


class TestDetachedSlurm(DetachingContract):
    """`launcher=slurm launcher.detach=true`."""

    name = "slurm"

    @pytest.fixture
    def launcher(self, outputs: Path) -> Launcher:
        return SlurmLauncher(launcher_spec("slurm", grace_s=1.0, detach=True), outputs)
