"""Nodes of a stage, without a cluster: what they tell each other, and whose exit code counts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.launching import stage
from xp.errors import ExitCode
from xp.execution.launchers.base import Context
from xp.execution.launchers.cluster import spread_of
from xp.execution.launchers.node.job_spec import JobSpec, Result, make_job_spec
from xp.execution.launchers.node.spread import command, first_failure, node_address
from xp.execution.launchers.node.tracking import followed
from xp.execution.tracking.base import NodeTracking
from xp.lib import private_ray
from xp.worker.nodes import Nodes, interface_of, local_address


def test_a_program_reads_the_nodes_as_the_launcher_named_them() -> None:
    nodes = Nodes(2, 1, "127.0.0.1", 4000)
    assert Nodes.here(nodes.variables()) == nodes
    assert Nodes.here({}) is None
    name = interface_of(local_address("127.0.0.1"))
    assert name is not None
    assert nodes.variables()["GLOO_SOCKET_IFNAME"] == os.environ.get("GLOO_SOCKET_IFNAME", name)


@pytest.mark.parametrize(
    ("script", "address"),
    [
        ("echo NodeName=me Arch=x86_64 NodeAddr=127.0.0.7 OS=Linux 5", "127.0.0.7"),
        ("exit 1", "127.0.0.9"),
        (None, "127.0.0.9"),
    ],
)
def test_the_address_of_a_node_is_slurms(
    script: str | None, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if script is not None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n[ $4 = 127.0.0.9 ] && {script}\n")
        (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "127.0.0.9")
    assert node_address() == address


def test_the_node_that_failed_first_has_the_exit_code(tmp_path: Path) -> None:
    assert first_failure(tmp_path) is None
    for number, (code, ended) in enumerate(
        [
            (143, 20.0),
            (21, 10.0),
            (0, 5.0),
        ]
    ):
        (tmp_path / f"node_{number}.json").write_text(json.dumps({"code": code, "ended": ended}))
    (tmp_path / "node_3.json").write_text("{")
    assert first_failure(tmp_path) == 21


def test_a_stage_without_its_outputs_has_failed() -> None:
    codes = [Result(code, ("a",), "2026-11-21T12:00:00Z").exit_code for code in (0, 7)]
    assert codes == [ExitCode.MISSING_OUTPUT, 7]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"container": ("apptainer", "exec", "a.sif")}, ["a.sif", "python3"]),
        ({"srun": ("--container-image=a.sqsh",)}, ["--container-image=a.sqsh", "python3"]),
    ],
)
def test_srun_starts_the_program_in_its_container(
    options: dict[str, tuple[str, ...]], words: list[str], tmp_path: Path
) -> None:
    small = stage("train", "pass")
    context = Context("r", 1, tmp_path, "runs/r/attempt_1")
    spread = spread_of(small.job, "srun", **options)  # type: ignore[arg-type]
    written = make_job_spec(
        small, context, root=str(tmp_path), grace_s=1.0, secrets_file=None, spread=spread
    )
    assert JobSpec.from_json(written.to_json()) == written
    started = command(written, "job.json")
    assert started[:3] == ["srun", "--nodes=1", "--ntasks=1"]
    assert started[-6:-4] == words


def test_whoever_joins_a_cluster_says_its_token_and_no_other() -> None:
    told = private_ray.token_variables(Path("/home/me/token"))
    found = private_ray.joining({"RAY_AUTH_TOKEN": "another", "HOME": "/home/me"}, told)
    assert found == {
        "HOME": "/home/me",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/home/me/token",
    }
    assert private_ray.joining({"RAY_AUTH_TOKEN": "mine"}, {}) == {"RAY_AUTH_TOKEN": "mine"}


@pytest.mark.parametrize("is_tracked", [False, True])
def test_a_tracked_program_has_the_variables_of_its_trackers(
    is_tracked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XP_SAMPLE", raising=False)
    context = Context("r", 1, tmp_path, "runs/r/attempt_1")
    job = make_job_spec(
        stage("train", "pass"), context, root=str(tmp_path), grace_s=1.0, secrets_file=None
    )
    if is_tracked:
        variables = {"XP_SAMPLE": "1"}
        job = replace(
            job,
            tracking=NodeTracking(
                (),
                project="p",
                config={},
                env=variables,
            ),
        )
        (tmp_path / "runs/r").mkdir(parents=True)
    code = followed(job, tmp_path, lambda: int("XP_SAMPLE" in os.environ), pytest.fail)
    assert code == int(is_tracked)
