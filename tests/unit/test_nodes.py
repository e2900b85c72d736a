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
from xp.planning.job import Resources, Runtime
from xp.worker.nodes import Nodes, free_port, interface_of, local_address


def test_a_program_reads_the_nodes_as_the_launcher_named_them() -> None:
    nodes = Nodes(2, 1, "127.0.0.1", 4000)
    assert Nodes.here(nodes.variables()) == nodes
    assert Nodes.here({}) is None
    name = interface_of(local_address("127.0.0.1"))
    assert name is not None
    assert nodes.variables()["GLOO_SOCKET_IFNAME"] == os.environ.get("GLOO_SOCKET_IFNAME", name)
    assert interface_of("192.0.2.123") is None
    assert free_port("127.0.0.1") > 0


@pytest.mark.parametrize(
    ("script", "address"),
    [
        ("echo NodeName=me Arch=x86_64 NodeAddr=127.0.0.7 OS=Linux 5", "127.0.0.7"),
        ("echo NodeName=me NodeAddr=", "127.0.0.9"),
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
    for number, (code, ended) in enumerate([(143, 20.0), (21, 10.0), (0, 5.0)]):
        (tmp_path / f"node_{number}.json").write_text(json.dumps({"code": code, "ended": ended}))
    (tmp_path / "node_3.json").write_text("{")
    assert first_failure(tmp_path) == 21


@pytest.mark.parametrize(
    ("code", "missing", "expected"),
    [(0, (), 0), (0, ("a",), ExitCode.MISSING_OUTPUT), (7, ("a",), 7), (137, (), 137)],
)
def test_a_stage_without_its_outputs_has_failed(
    code: int, missing: tuple[str, ...], expected: int
) -> None:
    assert Result(code, missing, "2026-11-21T12:00:00Z").exit_code == expected


def test_a_program_without_trackers_is_run_and_with_them_has_their_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XP_SAMPLE", raising=False)
    context = Context("r", 1, tmp_path, "runs/r/attempt_1")
    plain = make_job_spec(
        stage("train", "pass"), context, root=str(tmp_path), grace_s=1.0, secrets_file=None
    )
    assert plain.tracking is None
    assert followed(plain, tmp_path, lambda: int("XP_SAMPLE" in os.environ), pytest.fail) == 0
    tracked = replace(
        plain, tracking=NodeTracking(names=(), project="p", config={}, env={"XP_SAMPLE": "1"})
    )
    (tmp_path / "runs/r").mkdir(parents=True)
    assert followed(tracked, tmp_path, lambda: 6 + int("XP_SAMPLE" in os.environ), pytest.fail) == 7


def test_a_job_spec_keeps_how_its_program_is_spread(tmp_path: Path) -> None:
    one = stage("train", "pass").job
    assert spread_of(one, "srun") is None
    two = replace(
        one, resources=Resources("h100", 8, 2, 16, 64.0), runtime=Runtime(packages=("ray",))
    )
    spread = spread_of(two, "srun", ray_token="/home/me/token")
    context = Context("r", 1, tmp_path, "runs/r/attempt_1")
    made = make_job_spec(
        replace(stage("train", "pass"), job=two),
        context,
        root=str(tmp_path),
        grace_s=1.0,
        secrets_file=None,
        spread=spread,
    )
    assert JobSpec.from_json(made.to_json()) == made
    contained = spread_of(one, "srun", container=("apptainer", "exec", "a.sif"))
    words = command(replace(made, spread=contained), "job.json")
    assert words[:3] == ["srun", "--nodes=1", "--ntasks=1"]
    assert words[-6:-1] == [
        "a.sif",
        "python3",
        "-m",
        "xp.execution.launchers.node.member",
        "job.json",
    ]
    by_srun_alone = spread_of(one, "srun", srun=("--container-image=a.sqsh",))
    words = command(replace(made, spread=by_srun_alone), "job.json")
    assert words[-6:-1] == [
        "--container-image=a.sqsh",
        "python3",
        "-m",
        "xp.execution.launchers.node.member",
        "job.json",
    ]


def test_whoever_joins_a_cluster_says_its_token_and_no_other() -> None:
    told = private_ray.token_variables(Path("/home/me/token"))
    found = private_ray.joining({"RAY_AUTH_TOKEN": "another", "HOME": "/home/me"}, told)
    assert found == {
        "HOME": "/home/me",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "/home/me/token",
    }
    assert private_ray.joining({"RAY_AUTH_TOKEN": "mine"}, {}) == {"RAY_AUTH_TOKEN": "mine"}
