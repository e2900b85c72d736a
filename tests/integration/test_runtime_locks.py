"""One lock for each trainer: whole, with hashes, and the only place that a version comes from."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.child import ended
from xp.cli.install import cannot_run_here, install_lock
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.preflight import interpreter
from xp.planning.job import Runtime
from xp.planning.plan import build_plan
from xp.planning.runtime import runtime_lock
from xp.planning.runtimes import LOCK, WHOLE, RuntimeLock, installed, locks

GPU = ("env=whodunit", "hardware=a100x4")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def small(tmp_path: Path) -> RuntimeLock:
    """A lock of no package at all, so that a real uv makes its environment without an index."""
    directory = tmp_path / "small"
    directory.mkdir()
    (directory / LOCK).write_text("# nothing\n")
    return RuntimeLock("small", directory)


@pytest.mark.parametrize("name", sorted(locks()))
def test_every_package_of_a_lock_has_version_and_hash(name: str) -> None:
    text = (locks()[name].directory / LOCK).read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if not entry.startswith("#")]
    assert len(entries) > 50
    whole = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==\S+ \\\n +--hash=sha256:[0-9a-f]{64}")
    assert [entry for entry in entries if not whole.match(entry)] == []
    assert "://" not in text


@pytest.mark.parametrize("backend", ["trl", "skyrl"])
def test_the_pins_of_a_backend_are_the_versions_of_its_lock(backend: str) -> None:
    pins = compose([*GPU, f"backend={backend}"]).backend.pins
    versions = locks()[backend].versions()
    assert {package: versions.get(package) for package in pins} == pins


def test_a_gpu_job_names_its_lock_and_others_do_not() -> None:
    def lock(*overrides: str) -> str | None:
        return build_plan(compose(["env=whodunit", *overrides]), "x").stages[-1].job.runtime.lock

    assert lock("backend=skyrl", "hardware=a100x4") == locks()["skyrl"].key
    assert lock("backend=trl", "hardware=a100x4") == locks()["trl"].key
    assert (
        lock("backend=skyrl", "hardware=a100x4", "backend.attention=sdpa") != locks()["skyrl"].key
    )
    assert lock("backend=trl", "hardware=a100x4", "backend.runtime.python=/usr/bin/python3") is None
    assert lock("backend=trl", "hardware=cpu", "model=tiny") is None
    for more in (
        "backend.runtime.project_env=SKYRL",
        "backend.parallel.strategy=megatron",
        "backend=slime",
    ):
        assert (
            runtime_lock(
                compose(
                    ["env=whodunit", "hardware=a100x4", "model=qwen3-4b", "backend=skyrl", more]
                )
            )
            is None
        )


def test_an_environment_is_found_by_its_lock_once_it_is_whole(
    home: Path, small: RuntimeLock
) -> None:
    runtime = Runtime(lock=small.key)
    assert interpreter(runtime) == sys.executable
    python = install_lock(small, sys.executable)
    assert interpreter(runtime) == str(python)
    assert python.is_relative_to(home / ".xp" / "runtimes" / small.key)
    made = ended([python, "-c", "import sys; print(sys.prefix)"], check=True)
    assert made.stdout.strip() == str(python.parent.parent)


@pytest.mark.usefixtures("home")
def test_a_build_that_was_cut_short_is_made_anew(small: RuntimeLock) -> None:
    python = install_lock(small, sys.executable)
    place = python.parent.parent
    (place / WHOLE).unlink()
    (place / "left over").touch()
    assert installed(small.key) is None
    assert install_lock(small, sys.executable) == python
    assert not (place / "left over").exists()


@pytest.mark.usefixtures("home")
def test_an_install_that_fails_says_so_and_leaves_nothing_that_looks_installed(
    small: RuntimeLock,
) -> None:
    (small.directory / LOCK).write_text(
        "no-such-package-of-anybody==1 --hash=sha256:" + "0" * 64 + "\n"
    )
    with pytest.raises(XpError, match=r"install stopped at: .* pip install") as caught:
        install_lock(small, sys.executable)
    assert caught.value.code == ExitCode.RUNTIME
    assert installed(small.key) is None


def test_nothing_is_installed_for_a_run_that_this_machine_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # no nvidia-smi
    assert "needs 4 x a100-80gb and this machine shows 0 GPUs" in str(
        cannot_run_here(compose([*GPU, "backend=skyrl"]))
    )
    assert cannot_run_here(compose([*GPU, "backend=skyrl", "launcher=slurm"])) is None
