"""`launcher.container` with a real apptainer and a real pyxis, and an image with a Debian and a Python of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.support.launching import launcher_spec, plan, stage
from xp.errors import XpError
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.record import RunRecord
from xp.execution.supervise import dispatch
from xp.planning.job import Resources, Runtime, Stage

APPTAINER = Path("/opt/xp-apptainer")
PYXIS = Path("/opt/xp-pyxis")


@dataclass(frozen=True)
class Way:
    """A way into an image of Debian trixie, which has its own Python."""

    container: str
    image: Path
    made_by: str
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the submitting shell."""


WAYS = {
    # Slurm's jobs are root's here: root mounts a file by the kernel; a user, whom a cluster has, gets a user namespace.
    "apptainer-file": Way("apptainer", APPTAINER / "image.sif", "make apptainer"),
    "apptainer-directory": Way(
        "apptainer", APPTAINER / "image", "make apptainer", {"APPTAINER_USERNS": "1"}
    ),
    "pyxis": Way("pyxis", PYXIS / "image.sqsh", "make pyxis"),
}

LOOK = """
import os, socket, sys, time
from pathlib import Path
node, count = int(os.environ.get("XP_NODE", "0")), int(os.environ.get("XP_NODES", "1"))
release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines())
print("node", node, "runs", release["VERSION_CODENAME"], "python", sys.version_info[:2] >= (3, 13))
assert not Path(sys.argv[1]).exists(), "a file of the machine's that no option names"
assert os.environ["CHECKOUT"] == "/root/checkout"
if len(sys.argv) > 2:
    assert os.environ["KEY"] == "XPCANARY " + "in a container"
    print("key", os.environ["KEY"])
if count > 1:
    address, _, port = os.environ["XP_MAIN_NODE"].rpartition(":")
    if node == 0:
        with socket.create_server((address, int(port))) as server:
            print("node 0 hears", server.accept()[0].recv(100).decode())
    else:
        while True:
            try:
                link = socket.create_connection((address, int(port)))
                break
            except OSError:
                time.sleep(0.1)
        link.sendall(f"node {node}".encode())
open(f"written_{node}", "w").close()
"""


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Way:
    """A way into the image, from a shell that has apptainer on its PATH and a home without secrets."""
    found = WAYS[request.param]
    if not found.image.parent.joinpath(".done").exists():
        pytest.skip(f"not here: {found.made_by}")
    monkeypatch.setenv("PATH", f"{APPTAINER}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    # Or the container would see this machine's /tmp, and with it the outputs of this test, whatever xp mounts.
    monkeypatch.setenv("APPTAINER_NO_MOUNT", "tmp")
    for name, value in found.variables.items():
        monkeypatch.setenv(name, value)
    return found


def contained(
    way: Way, code: str, *words: str, nodes: int = 1, secrets: dict[str, str] | None = None
) -> Stage:
    """A stage in that image."""
    runtime = Runtime(image=str(way.image), image_checkouts={"CHECKOUT": "/root/checkout"})
    one = stage("train", code, *words, secrets=secrets or {})
    return Stage(
        "train", replace(one.job, resources=Resources("cpu", 0, nodes, 1, 1.0), runtime=runtime)
    )


def run(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *stages: Stage
) -> tuple[RunRecord, str]:
    """The run's record and the first stage's log."""
    monkeypatch.setenv("XP_PASS_ENV", "CHECKOUT")
    outputs = tmp_path / "outputs"
    spec = launcher_spec("slurm", grace_s=5.0, container=way.container)
    record = dispatch(
        plan(*stages).by(spec), SlurmLauncher(spec, outputs), outputs, echo=lambda _: None
    )  # type: ignore[arg-type]
    (log,) = outputs.glob("runs/*/attempt_1/train/log.txt")
    return record, log.read_text()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("has_secret", [True, False])
def test_a_stage_runs_in_its_image_on_each_node(
    nodes: int, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_secret: bool
) -> None:
    private = tmp_path / "private.txt"
    private.touch()
    words = [str(private)]
    if has_secret:
        monkeypatch.setenv("MY_KEY", "XPCANARY in a container")
        words.append("key")
    one = contained(
        way, LOOK, *words, nodes=nodes, secrets={"KEY": "MY_KEY"} if has_secret else None
    )
    # One without an image is in the node's own Python.
    after = stage(
        "after",
        "import sys; from pathlib import Path; assert Path(sys.argv[1]).exists()",
        str(private),
    )
    record, text = run(way, tmp_path, monkeypatch, one, after)
    assert record.status == "succeeded"
    for node in range(nodes):
        assert f"node {node} runs trixie python True" in text
        assert (tmp_path / f"outputs/written_{node}").exists()
    assert ("node 0 hears node 1" in text) is (nodes == 2)
    assert "XPCANARY" not in text
    assert text.count("key ") == (nodes if has_secret else 0)


def test_the_exit_code_is_the_programs(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(XpError, match="stage train failed") as caught:
        run(way, tmp_path, monkeypatch, contained(way, "import sys; sys.exit(23)"))
    assert caught.value.code == 23
