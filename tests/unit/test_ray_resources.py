"""A Ray cluster's resources: a head that has just started is waited for, and an autoscaler's maximum decides."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers import ray
from xp.execution.launchers.ray import RayLauncher
from xp.planning.job import Job, Resources, Runtime, Stage


class Client:
    """Job client of a cluster that reports these CPUs in turn, the last for good, and such a maximum."""

    def __init__(self, cpus: Sequence[int | None], maximum: dict[str, int] | None) -> None:
        self._cpus = list(cpus)
        self._maximum = maximum
        self.jobs: list[str] = []

    def _do_request(self, _method: str, _path: str) -> Any:
        cpus = self._cpus.pop(0) if len(self._cpus) > 1 else self._cpus[0]
        usage = {} if cpus == 0 else {"CPU": [0.0, cpus]}
        status = None if cpus is None else {"loadMetricsReport": {"usage": usage}}
        return SimpleNamespace(json=lambda: {"data": {"clusterStatus": status}})

    def submit_job(self, *, entrypoint: str, entrypoint_num_cpus: int) -> str:
        assert entrypoint_num_cpus == 0
        self.jobs.append(entrypoint)
        return "job"

    def get_job_status(self, _job: str) -> Any:
        return SimpleNamespace(is_terminal=lambda: True)

    def get_job_logs(self, _job: str) -> str:
        return f"a line of Ray\nmaximum {json.dumps(self._maximum)}\n"


def check(monkeypatch: pytest.MonkeyPatch, client: Client, num_cpus: int = 4) -> None:
    monkeypatch.setattr(ray, "JOIN_S", 0.1)
    monkeypatch.setattr("time.sleep", lambda _: None)
    launcher = RayLauncher(compose(["launcher=ray"]).launcher, Path("outputs"))
    monkeypatch.setattr(launcher, "_client", lambda: client)
    resources = Resources(
        accelerator="cpu", num_accelerators=0, num_nodes=1, num_cpus=num_cpus, memory_gb=1.0
    )
    job = Job(
        argv=("true",),
        files={},
        outputs=(),
        resources=resources,
        runtime=Runtime(),
    )
    launcher._check_cluster([Stage("train", job)])


def test_a_cluster_that_scales_from_zero_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = Client([None, 0], {"CPU": 64})
    check(monkeypatch, client)
    assert len(client.jobs) == 1
    assert "its autoscaler can add it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("maximum", "text"), [(None, "has 2;"), ({"CPU": 3}, "has 3 at most, with its autoscaler;")]
)
def test_what_no_autoscaler_can_give_is_refused(
    monkeypatch: pytest.MonkeyPatch, maximum: dict[str, int] | None, text: str
) -> None:
    with pytest.raises(XpError, match="stage train needs 4 CPUs") as refused:
        check(monkeypatch, Client([2], maximum))
    assert text in str(refused.value)
    assert refused.value.code is ExitCode.RUNTIME
