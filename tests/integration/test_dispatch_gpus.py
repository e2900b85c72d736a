"""GPUs are counted before the start and given to one run at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.launching import CPU, stage
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.execution.launchers.local import LocalLauncher
from xp.execution.launchers.node.gpus import claim
from xp.planning.job import Resources, Stage
from xp.spec.hardware import visible_gpus

FOUR = "0, 9000\\n1, 0\\n2, 500\\n3, 0\\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs, as nvidia-smi tells it."""
    stub = tmp_path / "bin" / "nvidia-smi"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\nprintf '{FOUR}'\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def needing(count: int, nodes: int = 1) -> Stage:
    resources = replace(CPU, accelerator="a100-80gb", num_accelerators=count, num_nodes=nodes)
    code = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"
    return Stage("train", replace(stage("train", code).job, resources=resources))


def test_gpus_with_the_least_memory_in_use_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible_gpus() == ["1", "3", "2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert visible_gpus() == ["2", "0"]
    for nothing in ("", "-1", "9,0"):  # CUDA ignores what follows an unknown number
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 0,-1,1")
    assert visible_gpus() == ["2", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")
    assert visible_gpus() == ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"]


def a100s(count: int) -> list[Resources]:
    return [Resources("a100-80gb", count, 1, 1, 1.0)]


def test_two_runs_get_different_gpus_and_a_third_is_refused(tmp_path: Path) -> None:
    first = claim(a100s(2), tmp_path)
    second = claim(a100s(1), tmp_path)
    assert not set(first.names) & set(second.names)
    with pytest.raises(
        XpError, match=r"needs 2 .* 1 of the 4 that nvidia-smi shows here are free"
    ) as caught:
        claim(a100s(2), tmp_path)
    assert caught.value.code == ExitCode.RUNTIME
    first.release()
    assert len(claim(a100s(3), tmp_path).names) == 3  # with the one that the refused run had taken


def test_a_machine_without_the_gpus_is_told_before_the_start(tmp_path: Path) -> None:
    listing = "printf 'No devices were found'"
    (tmp_path / "bin/nvidia-smi").write_text(f"#!/bin/sh\n{listing}\n")
    with pytest.raises(
        XpError, match=r"2 x a100-80gb, and 0 of the 0 .*the plan is fine"
    ) as caught:
        LocalLauncher().check(
            [needing(2)], Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
        )
    assert caught.value.code == ExitCode.RUNTIME
    assert not (tmp_path / "outputs").exists()


def test_a_job_sees_the_gpus_that_its_run_was_given(tmp_path: Path) -> None:
    context = Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
    launcher = LocalLauncher(1.0, on_screen=False)
    launcher.check([needing(2)], context)
    screen: list[str] = []
    launcher.wait(launcher.submit(needing(2), context), screen.append)
    assert "".join(screen) == "1,3\n"
