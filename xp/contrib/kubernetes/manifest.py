"""Stages -> the manifest of a Job, a RayJob (KubeRay) or a JobSet, which a person can read and submit again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from xp.contrib.submitted_files import install_lines, stage_lines, to_yaml
from xp.execution.launchers import service
from xp.execution.launchers.base import StageContext
from xp.execution.launchers.node.job_spec import JOB_SPEC
from xp.execution.launchers.service import (
    LOCKS,
    MOUNT,
    PYTHON,
    lock_of,
)
from xp.lib.digest import text_digest
from xp.lib.private_ray import NICENESS
from xp.planning.job import Stage
from xp.planning.refusals import manages_own_gpus
from xp.planning.runtimes import added_to_image
from xp.spec.launcher import LauncherSpec
from xp.worker.nodes import MAIN

MANIFEST: Final = "kubernetes.yaml"
SCRIPT: Final = "run.sh"
"""File beside the manifest, which the pods run; it is on the volume too."""
JOB: Final = "job"
RAY_JOB: Final = "rayjob"
JOB_SET: Final = "jobset"
API_VERSION: Final = {
    JOB: "batch/v1",
    RAY_JOB: "ray.io/v1",
    JOB_SET: "jobset.x-k8s.io/v1alpha2",
}
KIND: Final = {JOB: "Job", RAY_JOB: "RayJob", JOB_SET: "JobSet"}
PORT: Final = 29500
"""Port of torch's rendezvous on the first pod of a stage; each pod has an address of its own."""
PATHS: Final = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class KubernetesOptions(BaseModel):
    """Fields of `launcher.options` for launcher=kubernetes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    context: str | None = None
    """Context of the user's kubeconfig. None means the current one."""
    namespace: str | None = None
    """Namespace of all objects. None means that of the context."""
    volume: str
    """Persistent volume claim with the outputs root. Pods of several nodes mount it at once (ReadWriteMany)."""
    queue: str | None = None
    """Local queue of Kueue, which admits the job. None means that the scheduler starts it at once."""
    image: str
    """Image below a lock's packages."""
    installer: str
    """Image with uv, tar and bash, which installs a lock's packages and copies files to the volume."""
    ray_version: str | None = None
    """Version of Ray in `backend.runtime.image`. None means that of the lock."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes with the accelerators."""


def options_of(spec: LauncherSpec) -> KubernetesOptions:
    """The launcher's options."""
    return KubernetesOptions.model_validate(spec.options)


def limit_of(spec: LauncherSpec, stage: Stage) -> str | None:
    """One sentence, with a remedy, for a stage that cannot run on Kubernetes; else None."""
    limit = service.limit_of(stage, "kubernetes")
    if limit is not None or not _needs_ray(stage) or ray_version(spec, stage):
        return limit
    return (
        f"stage {stage.name}: KubeRay starts Ray with a token only if it knows Ray's version, and an image does not say"
        " it; set launcher.options.ray_version=2.56.0, or what the image has (2.52 or later)"
    )


def ray_version(spec: LauncherSpec, stage: Stage) -> str | None:
    """Version of a stage's Ray. None means that it is unknown."""
    lock = lock_of(stage.job)
    if lock is None:
        return options_of(spec).ray_version
    return lock.versions().get("ray")


def _needs_ray(stage: Stage) -> bool:
    return stage.job.resources.num_nodes > 1 and manages_own_gpus(stage.job)


def kind_of(stages: Sequence[Stage]) -> str:
    """Kind of the object that runs these stages: `job`, `rayjob` or `jobset`."""
    if any(_needs_ray(stage) for stage in stages):
        return RAY_JOB
    if any(stage.job.resources.num_nodes > 1 for stage in stages):
        return JOB_SET
    return JOB


def name_of(identity: str, run_id: str, stage: str) -> str:
    """Name of an object, with at most 38 letters: those of its pods are longer, and KubeRay takes 47."""
    return f"xp-{label(run_id, 14)}-{label(stage, 8)}-{text_digest(identity)[:10]}"


def label(text: str, most: int = 40) -> str:
    """A text with the characters of a name in Kubernetes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:most].strip("-")


def script_text(name: str, stages: Sequence[StageContext]) -> str:
    """The script of all pods: `run.sh [STAGE...]`; without arguments, all stages one after the other."""
    _, context = stages[0]
    is_in_ray = kind_of([stage for stage, _ in stages]) == RAY_JOB
    names = " ".join(stage.name for stage, _ in stages)
    lines = [
        "#!/bin/bash",
        f"export PYTHONPATH={shlex.quote(f'{MOUNT}/{context.code}')}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"cd {MOUNT}",
        "export XP_NODE=${JOB_COMPLETION_INDEX:-0}",
        *stage_lines(name, is_chain=len(stages) > 1),
        # Pods of a JobSet find each other by names that are known a little later than the pods.
        f'if [ -n "${MAIN}" ]; then until getent ahosts "${{{MAIN}%:*}}" >/dev/null; do sleep 1; done; fi',
        f"for stage in ${{@:-{names}}}; do",
        "  case $stage in",
    ]
    for stage, its in stages:
        place = shlex.quote(f"{MOUNT}/{its.directory}/{stage.name}/{JOB_SPEC}")
        lines.append(f"    {stage.name})")
        if is_in_ray and not manages_own_gpus(stage.job):
            lines.append(
                "      unset CUDA_VISIBLE_DEVICES  # Ray hides GPUs that it did not reserve"
            )
        lines.append(f"      run_stage {stage.name} {_python(stage)} {place} ;;")
    return "\n".join([*lines, "  esac", "done", ""])


def manifest_text(
    name: str, stages: Sequence[StageContext], directory: str, spec: LauncherSpec
) -> str:
    """The YAML of a stage, or of a chain of stages.

    Args:
        name: name of the object.
        stages: stages with their run and attempt.
        directory: directory of the script, relative to the outputs root.
        spec: the launcher's section.

    Raises:
        XpError: PLAN if no lock has a stage's imports.
    """
    pods = _Pods(name, f"{MOUNT}/{directory}/{SCRIPT}", spec)
    kind = kind_of([stage for stage, _ in stages])
    if kind == RAY_JOB:
        body = _ray_job(pods, stages)
    elif kind == JOB_SET:
        body = _job_set(pods, stages)
    else:
        body = {"backoffLimit": pods.restarts, "template": pods.of(stages)}
        # A pod that is evicted or preempted is no failure of the job: it goes on from its last checkpoint.
        disruption = {"type": "DisruptionTarget", "status": "True"}
        rule = {"action": "Ignore", "onPodConditions": [disruption]}
        body["podFailurePolicy"] = {"rules": [rule]}
    labels = {"app.kubernetes.io/managed-by": "xp", "xp/run": label(stages[0][1].run_id)}
    if pods.options.queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = pods.options.queue
    document = {
        "apiVersion": API_VERSION[kind],
        "kind": KIND[kind],
        "metadata": {"name": name, "labels": labels},
        "spec": body,
    }
    return to_yaml([document])


def _ray_job(pods: _Pods, stages: Sequence[StageContext]) -> dict[str, Any]:
    """Head and workers in the Python of the stage that needs them; the head runs all stages, one after the other."""
    stage = next(each for each in stages if _needs_ray(each.stage))
    resources = stage.stage.job.resources
    version = ray_version(pods.spec, stage.stage)
    worker = {
        "groupName": "workers",
        "replicas": resources.num_nodes - 1,
        "minReplicas": resources.num_nodes - 1,
        "maxReplicas": resources.num_nodes - 1,
        "rayStartParams": {},
        "template": pods.of_ray(stage, [stage]),
    }
    cluster = {
        "rayVersion": version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {}, "template": pods.of_ray(stage, stages)},
        "workerGroupSpecs": [worker],
    }
    body: dict[str, Any] = {
        "entrypoint": f"bash {pods.script}",
        "shutdownAfterJobFinishes": True,
        "backoffLimit": pods.restarts,
        "submitterConfig": {"backoffLimit": 0},
        "rayClusterSpec": cluster,
    }
    if lock_of(stage.stage.job) is not None:
        # KubeRay's own submitter is the head's image, which gets Ray from the lock alone.
        submitter = {"name": "ray-job-submitter", "image": f"rayproject/ray:{version}"}
        pod = {"restartPolicy": "Never", "containers": [submitter]}
        body["submitterPodTemplate"] = {"spec": pod}
    return body


def _job_set(pods: _Pods, stages: Sequence[StageContext]) -> dict[str, Any]:
    """A job for each stage, which starts when the one before has succeeded, with a pod for each node."""
    jobs: list[dict[str, Any]] = []
    for stage in stages:
        name = label(stage.stage.name, 8)
        count = stage.stage.job.resources.num_nodes
        main = f"{pods.name}-{name}-0-0.{pods.name}:{PORT}"
        job = {
            "backoffLimit": 0,
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "template": pods.of([stage], {MAIN: main}),
        }
        replicated: dict[str, Any] = {"name": name, "replicas": 1, "template": {"spec": job}}
        if jobs:
            replicated["dependsOn"] = [{"name": jobs[-1]["name"], "status": "Complete"}]
        jobs.append(replicated)
    return {"failurePolicy": {"maxRestarts": pods.restarts}, "replicatedJobs": jobs}


class _Pods:
    """Templates of pods."""

    def __init__(self, name: str, script: str, spec: LauncherSpec) -> None:
        self.name = name
        self.script = shlex.quote(script)
        self.spec = spec
        self.options = options_of(spec)
        # With a supervisor, it is the supervisor that makes new attempts.
        self.restarts = spec.max_restarts if spec.detach else 0

    def of(
        self, stages: Sequence[StageContext], more: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """A pod that runs stages one after the other, with the most that one of them needs."""
        names = " ".join(each.stage.name for each in stages)
        with_image = (each for each in stages if each.stage.job.runtime.image is not None)
        main = next(with_image, stages[0])
        variables = {**_image_variables(main), **(more or {})}
        command = ["bash", "-c", f"{_added(stages)}exec bash {self.script} {names}"]
        return self._template("stage", stages, main, variables, {"command": command})

    def of_ray(self, stage: StageContext, installed: Sequence[StageContext]) -> dict[str, Any]:
        """A pod in which KubeRay starts Ray; all of Ray's processes get the stage's variables and secrets."""
        job = stage.stage.job
        code = f"{MOUNT}/{stage.context.code}"
        checkout = job.runtime.image_checkouts.get(job.runtime.project or "")
        variables = {
            **job.env,
            **NICENESS,
            **_image_variables(stage),
            "PYTHONPATH": f"{code}:{checkout}" if checkout else code,
        }
        if lock_of(job) is not None:
            variables["PATH"] = f"{_environment(stage.stage)}/bin:{PATHS}"
        added = _added([stage]).removesuffix(" && ")
        # KubeRay puts these words before `ray start`.
        command = {"command": shlex.split(added, posix=False)} if added else {}
        return self._template("ray", installed, stage, variables, command)

    def _template(
        self,
        name: str,
        stages: Sequence[StageContext],
        main: StageContext,
        variables: dict[str, str],
        command: dict[str, Any],
    ) -> dict[str, Any]:
        """A pod whose Pythons are those of `stages`; its image is that of the stage `main`."""
        needs = [each.stage.job.resources for each in stages]
        amounts = {
            "cpu": str(max(need.num_cpus for need in needs)),
            "memory": f"{max(need.memory_gb for need in needs):g}G",
        }
        counts = [need.num_accelerators for need in needs if need.accelerator != "cpu"]
        gpus = max(counts, default=0)
        pod: dict[str, Any] = {}
        if gpus:
            amounts["nvidia.com/gpu"] = str(gpus)
            pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
            if self.options.node_selector:
                pod["nodeSelector"] = self.options.node_selector
        secrets = sorted({secret for each in stages for secret in each.secrets})
        container = {
            "name": name,
            "image": main.stage.job.runtime.image or self.options.image,
            **command,
            "env": [*_environ(variables), *(self._secret(secret) for secret in secrets)],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [_OUTPUTS, _SCRATCH, _SHARED_MEMORY],
        }
        lines = [line for each in stages for line in _install(each)]
        if lines:
            shared = {"volumeMounts": [_OUTPUTS, _SCRATCH], "env": _environ(_UV)}
            pod["initContainers"] = [
                _init(self.options.installer, list(dict.fromkeys(lines)), shared)
            ]
        memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
        volumes = [_claim(self.options), {"name": "xp", "emptyDir": {}}, memory]
        grace_s = round(self.spec.grace_s) + 30
        pod |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s}
        return {"spec": {**pod, "containers": [container], "volumes": volumes}}

    def _secret(self, name: str) -> dict[str, Any]:
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": self.name, "key": name}}}


_OUTPUTS: Final = {"name": "outputs", "mountPath": MOUNT}
_SCRATCH: Final = {"name": "xp", "mountPath": "/xp"}
_SHARED_MEMORY: Final = {"name": "shared-memory", "mountPath": "/dev/shm"}
_UV: Final = {"UV_PYTHON_INSTALL_DIR": "/xp/pythons", "UV_LINK_MODE": "copy"}


def copying_pod(spec: LauncherSpec) -> dict[str, Any]:
    """The pod that writes an archive from its standard input to the volume, as an override of `kubectl run`."""
    options = options_of(spec)
    container = {
        "name": "files",
        "image": options.installer,
        "command": ["tar", "--extract", "--gzip", "--directory", MOUNT],
        "stdin": True,
        "stdinOnce": True,
        "volumeMounts": [_OUTPUTS],
    }
    return {"spec": {"containers": [container], "volumes": [_claim(options)]}}


def _claim(options: KubernetesOptions) -> dict[str, Any]:
    return {"name": "outputs", "persistentVolumeClaim": {"claimName": options.volume}}


def _init(image: str, lines: Sequence[str], shared: dict[str, Any]) -> dict[str, Any]:
    """An init container that installs packages; KubeRay's own, which needs Ray, comes after it."""
    return {
        "name": "install",
        "image": image,
        "command": ["bash", "-ec", "\n".join(lines)],
        **shared,
    }


def _environ(variables: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _environment(stage: Stage) -> str:
    """Directory of a stage's Python in its pod; stages of the same lock share one."""
    lock = lock_of(stage.job)
    assert lock is not None
    return f"/xp/python/{lock.key}"


def _python(stage: Stage) -> str:
    """A stage's interpreter in its pod."""
    if lock_of(stage.job) is None:
        return "python3"
    return f"{_environment(stage)}/bin/python"


def _install(stage: StageContext) -> list[str]:
    """Commands that install a stage's lock; none for an image."""
    lock = lock_of(stage.stage.job)
    if lock is None:
        return []
    place = _environment(stage.stage)
    files = f"{MOUNT}/{stage.context.directory}/{stage.stage.name}/{LOCKS}"
    return [
        f"uv venv --allow-existing --python {PYTHON} --managed-python {place}",
        *install_lines("uv", f"{place}/bin/python", files, lock),
    ]


def _added(stages: Sequence[StageContext]) -> str:
    """The beginning of a command that adds to an image what xp needs there."""
    if all(each.stage.job.runtime.project is None or lock_of(each.stage.job) for each in stages):
        return ""
    words = " ".join(f"'{line}'" for line in added_to_image())
    return f"python3 -m pip install {words} && "


def _image_variables(stage: StageContext) -> dict[str, str]:
    runtime = stage.stage.job.runtime
    return dict(runtime.image_checkouts) if runtime.image is not None else {}
