"""`launcher=ray`: each stage is a Ray job, by the official client, on nodes that see the outputs root.

The run's copy of the package is uploaded as the job's working directory, so that Ray's workers import it too. A job
that needs the module `ray` requests its accelerators itself (placement groups), so nothing is reserved for it; for
other jobs, Ray reserves them. Runtime environments have no secrets, since Ray stores them as plain text.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.execution.launchers import secrets_files
from xp.execution.launchers.base import Context, Launch, StageContext
from xp.execution.launchers.cluster import (
    identity,
    inherited,
    place_job_spec,
    read_launches,
    record_launches,
    spread_of,
)
from xp.execution.launchers.follow import ClusterLauncher
from xp.execution.launchers.node.gpus import Gpus, claim
from xp.execution.launchers.node.job_spec import JOB_SPEC, JobSpec
from xp.execution.launchers.preflight import check_machine
from xp.execution.launchers.ray_head import RayHead
from xp.lib.loopback import is_loopback
from xp.lib.packages import install_command
from xp.lib.reading import config_of
from xp.planning.job import Job, Stage
from xp.planning.refusals import check_limits, manages_own_gpus, needs_one_node
from xp.spec.launcher import LauncherSpec

HERE = "http://127.0.0.1:8265"
"""Default address of Ray's dashboard."""
JOIN_S = 30.0
"""Seconds until a head that has just started must have its resources."""
PROBE_S = 60.0
"""Seconds until the cluster must have said how far its autoscaler goes."""
MAXIMUM = """
import json, ray
from ray._private.state import state
ray.init(address="auto", logging_level="error", log_to_driver=False)
print("maximum", json.dumps(state.get_max_resources_from_cluster_config()))
"""
"""A job's program: largest number of each resource by the autoscaler's configuration, which the dashboard does not
have. null means that the cluster does not grow."""
LOST_S = 300.0
"""Seconds without an answer after which a cluster and its jobs count as lost."""


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.execution.launchers.base.LauncherModule."""
    reason = "launcher.start_head=true starts a cluster of this machine only"
    if spec.start_head:
        return needs_one_node(stage, reason)
    return None


class RayLauncher(ClusterLauncher):
    """One Ray job per stage; one job for all stages of a detached run."""

    name = "ray"

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        super().__init__(spec, outputs)
        self._head: RayHead | None = None
        self._gpus = Gpus()
        self._num_cpus = 1
        self._answered = time.monotonic()

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks the client, and for this machine the jobs' modules, for a cluster its answer and its size."""
        try:
            import ray.job_submission  # noqa: F401
        except ImportError:
            # Its client is in Ray's extra.
            install = install_command("ray").replace("ray==", "ray[default]==")
            raise XpError(f"launcher=ray needs Ray's client: {install}", ExitCode.RUNTIME) from None
        if is_loopback(self._address):
            check_machine(stages)
        else:
            self._check_secrets(stages)
        check_limits(self._spec, stages)
        self._num_cpus = max((stage.job.resources.num_cpus for stage in stages), default=1)
        if self._spec.start_head:
            self._gpus.release()
            self._gpus = claim([stage.job.resources for stage in stages])
        else:
            self._check_cluster(stages)

    def submit(self, stage: Stage, context: Context) -> Launch:
        return self._submit([StageContext(stage, context)])[0]

    def submit_all(self, stages: Sequence[StageContext]) -> list[Launch]:
        """Submits one job that runs the stages in order, since Ray does not order jobs."""
        return self._submit(stages) if stages else []

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Stops the job from a thread, since Ray's client waits; Ray sends TERM, and KILL after the grace period."""
        if now and self._head is not None:
            self._head.kill()
            return
        threading.Thread(target=self._stop, args=(launch.native_id,), daemon=False).start()

    def close(self, context: Context) -> None:
        super().close(context)
        if self._head is not None:
            self._head.stop()
            self._head = None

    def preview(self, stages: Sequence[StageContext]) -> Mapping[str, str]:
        """The client's request for each Ray job; for one job of all stages of a detached run."""
        groups = [[stage] for stage in stages]
        if self._spec.detach:
            groups = [list(stages)]
        return {
            f"{group[0][1].directory}/{group[0][0].name}/ray_job.json": self._previewed(group)
            for group in groups
        }

    def _previewed(self, stages: Sequence[StageContext]) -> str:
        stage, context = stages[0]
        specs = [pair.directory / JOB_SPEC for pair in stages]
        file = self._spec.secrets_file
        if file is None and stage.job.secrets:
            file = str(secrets_files.file_of(context, stage.name))
        jobs = [stage.job for stage, _ in stages]
        request = self._request(identity(stage, context), jobs, specs, file, context)
        return json.dumps(request, indent=2) + "\n"

    @property
    def _address(self) -> str:
        return self._spec.address or HERE

    @property
    def _python(self) -> str:
        """The Python of a job's entrypoint."""
        if is_loopback(self._address):
            return sys.executable
        return "python"

    def _client(self) -> Any:
        from ray.job_submission import JobSubmissionClient

        for name in (
            "ray",
            "ray.dashboard.modules.dashboard_sdk",
            "ray._private.runtime_env.packaging",
        ):
            logging.getLogger(name).setLevel(logging.WARNING)
        if self._head is not None:
            return JobSubmissionClient(
                self._head.address, headers={"Authorization": f"Bearer {self._head.token}"}
            )
        return JobSubmissionClient(self._address)

    def _submit(self, stages: Sequence[StageContext]) -> list[Launch]:
        stage, context = stages[0]
        directory = stages[0].directory
        known = read_launches(directory)
        if known is not None:
            return known
        plain, hidden = inherited(context)
        if self._spec.start_head and (self._head is None or not self._head.is_alive):
            cpus = max(os.cpu_count() or 1, self._num_cpus)
            self._head = RayHead(num_cpus=cpus, gpus=self._gpus.names, environ=plain)
        native_id = identity(stage, context)
        client = self._client()
        if _info(client, native_id) is None:
            extra = hidden if is_loopback(self._address) else {}
            # A reservation for the whole Ray job would keep the GPUs from a program that requests them itself.
            is_shared = any(manages_own_gpus(stage.job) for stage, _ in stages)
            specs = []
            for sent, its in stages:
                is_apart = is_shared and sent.job.resources.num_accelerators > 0
                spread = None
                if not manages_own_gpus(sent.job):
                    spread = spread_of(sent.job, "ray", is_apart=is_apart)
                specs.append(
                    place_job_spec(sent, its, self._spec, extra=extra, prints=True, spread=spread)
                )
            self._hand_in(client, native_id, [stage.job for stage, _ in stages], specs, context)
        return record_launches(directory, self.name, native_id, stages)

    def _hand_in(
        self,
        client: Any,
        native_id: str,
        jobs: Sequence[Job],
        specs: Sequence[Path],
        context: Context,
    ) -> None:
        secrets_file = config_of(specs[0], JobSpec.from_json).secrets_file
        try:
            client.submit_job(**self._request(native_id, jobs, specs, secrets_file, context))
        except Exception as error:  # the client raises RuntimeError for all errors of the server
            with suppress(Exception):
                if _info(client, native_id) is not None:  # it was accepted, and the answer was lost
                    return
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise XpError(
                f"Ray did not take the job {native_id}: {lines[-1]}", ExitCode.RUNTIME
            ) from None

    def _request(
        self,
        native_id: str,
        jobs: Sequence[Job],
        specs: Sequence[Path],
        secrets_file: str | None,
        context: Context,
    ) -> dict[str, Any]:
        """Request to Ray's client."""
        projects = [job.runtime.project or "" for job in jobs]
        variables = {
            **(dict(jobs[0].env) if len(jobs) == 1 else {}),
            **({"XP_SECRETS_FILE": secrets_file} if secrets_file and len(jobs) == 1 else {}),
            **{name: os.environ[name] for name in projects if name in os.environ},
            "RAY_JOB_STOP_WAIT_TIME_S": str(math.ceil(self._spec.grace_s) + 2),
            "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
        }
        return {
            "entrypoint": shlex.join(
                [
                    self._python,
                    "-m",
                    "xp.execution.launchers.node.on_node",
                    native_id,
                    *map(str, specs),
                ]
            ),
            "submission_id": native_id,
            "runtime_env": {
                "working_dir": str(context.outputs / context.code),
                "env_vars": variables,
            },
            **self._reservation(jobs),
        }

    def _reservation(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """Resources that Ray reserves for the program of these jobs."""
        needs = [
            job.resources
            for job in jobs
            if not manages_own_gpus(job) and job.resources.num_nodes == 1
        ]
        gpus = 0
        if not any(map(manages_own_gpus, jobs)):
            gpus = max((need.num_accelerators for need in needs), default=0)
        memory_gb = 0.0
        if not self._spec.start_head:
            memory_gb = max((need.memory_gb for need in needs), default=0.0)
        return {
            "entrypoint_num_cpus": max((need.num_cpus for need in needs), default=1),
            "entrypoint_num_gpus": gpus,
            "entrypoint_memory": int(memory_gb * 2**30),
        }

    def _check_secrets(self, stages: Sequence[Stage]) -> None:
        names = sorted({name for stage in stages for name in stage.job.secrets})
        if names and self._spec.secrets_file is None:
            raise XpError(
                f"{', '.join(names)}: Ray stores variables as plain text, so a cluster elsewhere needs the values"
                " on its nodes: write a JSON object (name -> value) there, chmod 600, and name it:"
                " launcher.secrets_file=/path/on/the/nodes.json",
                ExitCode.SECRET,
            )

    def _check_cluster(self, stages: Sequence[Stage]) -> None:
        """Raises XpError(RUNTIME) for a cluster that does not answer, or can never run a stage: what it has now, or its
        autoscaler's maximum, is too small."""
        end = time.monotonic() + JOIN_S
        there = self._resources()
        while _lacking(stages, there) is not None and time.monotonic() < end:
            time.sleep(1)
            there = self._resources()
        if _lacking(stages, there) is None:
            return
        maximum = self._maximum()
        most = {name: max(there.get(name, 0), maximum.get(name, 0)) for name in {*there, *maximum}}
        lacking = _lacking(stages, most)
        if lacking is None:
            print(
                f"xp: the Ray cluster at {self._address} has too little now; its autoscaler can add it",
                flush=True,
            )
            return
        stage, name, needed, limit = lacking
        grows = " at most, with its autoscaler" if maximum else ""
        raise XpError(
            f"stage {stage} needs {needed} {name}s and the Ray cluster at {self._address} has {limit}{grows}; choose a"
            " smaller hardware option, or a larger cluster",
            ExitCode.RUNTIME,
        )

    def _resources(self) -> dict[str, int]:
        """Resources that the cluster has now; none while its head starts."""
        try:
            answer = self._client()._do_request("GET", "/api/cluster_status").json()
            status = answer["data"]["clusterStatus"] or {}
            usage = (status.get("loadMetricsReport") or {}).get("usage") or {}
            return {name: int(counts[1]) for name, counts in usage.items()}
        except Exception as error:
            raise XpError(
                f"no Ray cluster answers at {self._address} ({type(error).__name__}); start one, or set"
                " launcher.start_head=true",
                ExitCode.RUNTIME,
            ) from None

    def _maximum(self) -> dict[str, int]:
        """Limits of the autoscaler, by a job that needs no resources. Empty means that the cluster does not grow."""
        with suppress(Exception):
            client = self._client()
            job = client.submit_job(
                entrypoint=shlex.join([self._python, "-c", MAXIMUM]), entrypoint_num_cpus=0
            )
            end = time.monotonic() + PROBE_S
            while not client.get_job_status(job).is_terminal() and time.monotonic() < end:
                time.sleep(1)
            lines = client.get_job_logs(job).splitlines()
            answer = next(line for line in lines if line.startswith("maximum "))
            maximum = json.loads(answer.removeprefix("maximum ")) or {}
            return {str(name): int(count) for name, count in maximum.items()}
        return {}

    def _ended(self, launch: Launch) -> int | None:
        try:
            info = _info(self._client(), launch.native_id)
        except Exception:  # without an answer the state is unchanged, for a while
            is_lost = time.monotonic() - self._answered > LOST_S
            if is_lost or (self._head is not None and not self._head.is_alive):
                return 128 + 15
            return None
        self._answered = time.monotonic()
        if info is None:
            return 128 + 15  # the cluster was restarted and has no such job
        if not info.status.is_terminal():
            return None
        if str(info.status) == "STOPPED":
            return 128 + 15
        code: int = info.driver_exit_code or ExitCode.INTERNAL
        return code if code > 0 else 128 - code

    def _message(self, launch: Launch) -> str:
        with suppress(Exception):
            info = _info(self._client(), launch.native_id)
            return "" if info is None else str(info.message)
        return ""

    def _stop(self, native_id: str) -> None:
        with suppress(Exception):
            self._client().stop_job(native_id)


make_launcher = RayLauncher
"""See xp.execution.launchers.base.LauncherModule."""


def _lacking(stages: Sequence[Stage], there: Mapping[str, int]) -> tuple[str, str, int, int] | None:
    """First stage that needs more: its name, the resource, the number that it needs, and that which is there."""
    for stage in stages:
        needs = stage.job.resources
        counts = {"CPU": needs.num_cpus, "GPU": needs.num_accelerators}
        for name, number in counts.items():
            count = number * needs.num_nodes
            if there.get(name, 0) < count:
                return stage.name, name, count, there.get(name, 0)
    return None


def _info(client: Any, native_id: str) -> Any | None:
    """Ray's information about a job. None means that it has no such job."""
    try:
        return client.get_job_info(native_id)
    except RuntimeError as error:
        if "404" in str(error) or "does not exist" in str(error):
            return None
        raise
