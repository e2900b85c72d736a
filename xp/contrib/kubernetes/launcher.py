"""`launcher=kubernetes`: each stage is a Job, a RayJob or a JobSet; the outputs root is a persistent volume claim.

All requests use kubectl. KubeRay, JobSet and Kueue place, start, restart and end the pods; xp reads their status.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from xp.contrib.kubernetes.manifest import (
    API_VERSION,
    JOB_SET,
    KIND,
    MANIFEST,
    RAY_JOB,
    SCRIPT,
    KubernetesOptions,
    copying_pod,
    kind_of,
    label,
    limit_of,
    manifest_text,
    name_of,
    options_of,
    script_text,
)
from xp.contrib.submitted_files import code_in, secret_values_of, stage_log
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Echo, Launch, StageContext
from xp.execution.launchers.cluster import ask, identity, run_unattended
from xp.execution.launchers.node.job_spec import JOB_SPEC
from xp.execution.launchers.service import (
    LOCKS,
    ServiceLauncher,
)
from xp.lib.atomic import write_atomically
from xp.lib.secrets.redaction import resolve
from xp.planning.job import Stage
from xp.planning.refusals import check_limits

__all__ = ["KubernetesLauncher", "Options", "limit", "make_launcher"]

Options = KubernetesOptions
"""See xp.execution.launchers.base.LauncherModule."""
limit = limit_of
"""See xp.execution.launchers.base.LauncherModule."""

ANSWER_S = 60.0
COPY_S = 600
"""Seconds until the pod that copies files must run."""
RESOURCE: Final = {
    kind: f"{KIND[kind].lower()}s.{version.partition('/')[0]}"
    for kind, version in API_VERSION.items()
}
"""Kind -> its name in kubectl."""
SUCCEEDED = "succeeded"
FAILED = "failed"
ABSENT = "absent"
RUNNING = "running"


class KubernetesLauncher(ServiceLauncher):
    """One object per stage; one object with all stages for a detached run."""

    name = "kubernetes"
    file_name = MANIFEST
    brings_metrics = False

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks kubectl, the volume, the operators, and whether Kubernetes can run the stages."""
        if shutil.which("kubectl") is None:
            raise XpError(
                "launcher=kubernetes needs Kubernetes' client: install kubectl, then choose a cluster:"
                " kubectl config use-context",
                ExitCode.RUNTIME,
            )
        check_limits(self._spec, stages)
        if context.tracking is not None:
            resolve(context.tracking.secrets)
        volume = options_of(self._spec).volume
        ask([*self._kubectl(), "get", "persistentvolumeclaim", volume], timeout_s=ANSWER_S)
        groups = [stages] if self._spec.detach else [[stage] for stage in stages]
        for kind in sorted({kind_of(group) for group in groups}):
            ask([*self._kubectl(), "get", RESOURCE[kind]], timeout_s=ANSWER_S)

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follows the stage's log until the cluster reports its end."""
        while not self._has_log(launch):
            code = self.poll(launch)
            if code is not None:
                break
            time.sleep(self.ask_s)
        command = [*self._logs(launch), "--follow"]
        return self._follow(launch, command, echo)

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the stage is queued or running, or if the cluster does not answer."""
        state = self._state(launch.native_id)
        if state is None:
            return None
        code = code_in(self._log(launch), _stage(launch))
        if state == RUNNING:
            return code if code == 0 else None  # after a failure, the operator may start it again
        if state == ABSENT:
            return ExitCode.TERMINATED
        self._forget_secrets(launch.native_id)
        if state == SUCCEEDED:
            return ExitCode.OK
        return code if code is not None else ExitCode.RUNTIME

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Deletes the object; its pods get TERM, and KILL after the grace period."""
        kind, name = _kind_and_name(launch.native_id)
        words = ["delete", RESOURCE[kind], name, "--ignore-not-found", "--wait=false"]
        if now:
            words.append("--grace-period=1")
        run_unattended([*self._kubectl(), *words])

    def fetch(self, launch: Launch) -> None:
        """Writes the current log; results stay on the volume."""
        text = self._log(launch)
        if text:
            log = self._outputs / launch.log
            log.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(log, self._redactor.redact(stage_log(text, _stage(launch))))

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Raises XpError(RUNTIME) with the place of the results, which kubectl can copy."""
        volume = options_of(self._spec).volume
        raise XpError(
            f"{', '.join(names)}: launcher=kubernetes leaves results on the volume {volume}; copy them from a pod that"
            " mounts it (kubectl cp)",
            ExitCode.RUNTIME,
        )

    def preview(self, stages: Sequence[StageContext]) -> Mapping[str, str]:
        """The manifests, and the scripts that their pods run."""
        groups = [stages] if self._spec.detach else [[pair] for pair in stages]
        files = {}
        for group in groups:
            directory = self._directory(group)
            files[f"{directory}/{MANIFEST}"] = self._text(group)
            files[f"{directory}/{SCRIPT}"] = script_text(self._object(group), group)
        return files

    def _directory(self, stages: Sequence[StageContext]) -> str:
        """Directory of the manifest, relative to the outputs root."""
        stage, context = stages[0]
        if self._spec.detach:
            return context.directory
        return f"{context.directory}/{stage.name}"

    def _object(self, stages: Sequence[StageContext]) -> str:
        stage, context = stages[0]
        return name_of(identity(stage, context), context.run_id, stage.name)

    def _text(self, stages: Sequence[StageContext]) -> str:
        name = self._object(stages)
        return manifest_text(name, stages, self._directory(stages), self._spec)

    def _id(self, stages: Sequence[StageContext]) -> str:
        """`KIND.NAME`: a later process knows both from the record."""
        return f"{kind_of([stage for stage, _ in stages])}.{self._object(stages)}"

    def _find(self, native_id: str) -> str | None:
        state = self._state(native_id)
        return native_id if state not in (None, ABSENT) else None

    def _hand_in(self, file: Path, name: str, stages: Sequence[StageContext]) -> str:
        """Copies the files to the volume, then creates the secret and the object, which owns the secret."""
        kind, name = _kind_and_name(name)
        directory = self._directory(stages)
        script = self._outputs / directory / SCRIPT
        write_atomically(script, script_text(name, stages))
        self._copy([f"{directory}/{SCRIPT}", *_files(stages)], name)
        values = secret_values_of(stages)
        self._apply_secret(name, values, None)
        words = ["create", "--filename", str(file), "--output", "json"]
        try:
            text = ask([*self._kubectl(), *words], timeout_s=ANSWER_S)
        except XpError:
            # A cluster that does not answer may have created the object, which then needs the secret.
            if self._state(f"{kind}.{name}") == ABSENT:
                ask(self._secret_deletion(name), timeout_s=ANSWER_S)
            raise
        owner = {
            "apiVersion": API_VERSION[kind],
            "kind": KIND[kind],
            "name": name,
            "uid": json.loads(text)["metadata"]["uid"],
        }
        self._apply_secret(name, values, owner)
        return f"{kind}.{name}"

    def _copy(self, files: Sequence[str], name: str) -> None:
        """Copies files (relative to the outputs root) to the volume, through a pod that ends with it."""
        overrides = json.dumps(copying_pod(self._spec))
        image = options_of(self._spec).installer
        pod = f"{name}-files"
        words = ["run", pod, "--stdin", "--rm", "--quiet", "--restart=Never", f"--image={image}"]
        words += [f"--pod-running-timeout={COPY_S}s", f"--overrides={overrides}"]
        with subprocess.Popen(
            [*self._kubectl(), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            # A pod that does not start is told by kubectl's message below.
            with (
                suppress(BrokenPipeError),
                tarfile.open(fileobj=process.stdin, mode="w|gz") as archive,
            ):
                for path in dict.fromkeys(files):
                    archive.add(self._outputs / path, path)
            with suppress(BrokenPipeError):
                process.stdin.close()
            errors = process.stderr.read().decode(errors="replace").strip()
        if process.returncode:
            raise XpError(
                f"kubectl could not copy the run's files to the volume: {errors}", ExitCode.RUNTIME
            )

    def _apply_secret(
        self, name: str, values: Mapping[str, str], owner: dict[str, str] | None
    ) -> None:
        """Creates the secret, or gives it an owner; the values go through standard input alone."""
        if not values:
            return
        metadata: dict[str, Any] = {"name": name}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "stringData": dict(values),
        }
        words = ["apply", "--server-side", "--force-conflicts", "--filename", "-"]
        ask([*self._kubectl(), *words], timeout_s=ANSWER_S, text=json.dumps(secret))

    def _forget_secrets(self, native_id: str) -> None:
        _, name = _kind_and_name(native_id)
        run_unattended(self._secret_deletion(name))

    def _secret_deletion(self, name: str) -> list[str]:
        return [*self._kubectl(), "delete", "secret", name, "--ignore-not-found"]

    def _state(self, native_id: str) -> str | None:
        """State of an object, by its operator's own status. None means that there was no answer."""
        kind, name = _kind_and_name(native_id)
        words = ["get", RESOURCE[kind], name, "--ignore-not-found", "--output", "json"]
        try:
            text = ask([*self._kubectl(), *words], timeout_s=ANSWER_S)
            if not text.strip():
                return ABSENT
            return state_of(kind, json.loads(text).get("status") or {})
        except (XpError, ValueError, AttributeError, TypeError):
            return None

    def _pods(self, launch: Launch) -> str:
        """Label selector of the pods with a stage's log."""
        kind, name = _kind_and_name(launch.native_id)
        if kind == JOB_SET:
            name = f"{name}-{label(_stage(launch), 8)}-0"
        return f"batch.kubernetes.io/job-name={name}"  # of a RayJob: its submitter

    def _has_log(self, launch: Launch) -> bool:
        """Returns whether a pod of the stage has started."""
        words = ["get", "pods", "--selector", self._pods(launch), "--output", "json"]
        with suppress(XpError, ValueError, KeyError, TypeError):
            pods = json.loads(ask([*self._kubectl(), *words], timeout_s=ANSWER_S))["items"]
            return any(pod["status"]["phase"] not in ("Pending", "Unknown") for pod in pods)
        return False

    def _logs(self, launch: Launch) -> list[str]:
        selector = self._pods(launch)
        if _kind_and_name(launch.native_id)[0] == JOB_SET:
            selector += ",batch.kubernetes.io/job-completion-index=0"
        return [*self._kubectl(), "logs", "--selector", selector, "--tail=-1"]

    def _log(self, launch: Launch) -> str:
        with suppress(XpError):
            return ask(self._logs(launch), timeout_s=ANSWER_S)
        return ""

    def _kubectl(self) -> list[str]:
        options = options_of(self._spec)
        words = ["kubectl"]
        if options.context is not None:
            words.append(f"--context={options.context}")
        if options.namespace is not None:
            words.append(f"--namespace={options.namespace}")
        return words


make_launcher = KubernetesLauncher
"""See xp.execution.launchers.base.LauncherModule."""


def state_of(kind: str, status: Mapping[str, Any]) -> str:
    """State of an object by the status that its operator writes."""
    if kind == RAY_JOB:
        # KubeRay: Complete also where the job itself failed; Failed where there are no more retries.
        deployment = status.get("jobDeploymentStatus")
        if deployment == "Complete" and status.get("jobStatus") == "SUCCEEDED":
            return SUCCEEDED
        return FAILED if deployment in ("Complete", "Failed", "ValidationFailed") else RUNNING
    if kind == JOB_SET:
        ends = {"Completed": SUCCEEDED, "Failed": FAILED}
        return ends.get(str(status.get("terminalState")), RUNNING)
    conditions = status.get("conditions") or []
    true = {condition["type"] for condition in conditions if condition["status"] == "True"}
    if "Complete" in true:
        return SUCCEEDED
    return FAILED if "Failed" in true else RUNNING


def _kind_and_name(native_id: str) -> tuple[str, str]:
    kind, _, name = native_id.partition(".")
    return kind, name


def _stage(launch: Launch) -> str:
    return launch.key.rpartition("/")[2]


def _files(stages: Sequence[StageContext]) -> list[str]:
    """Paths, relative to the outputs root, of what the pods need: the code, job specs, and files of locks."""
    paths = []
    for pair in stages:
        directory = f"{pair.context.directory}/{pair.stage.name}"
        paths += [pair.context.code, f"{directory}/{JOB_SPEC}"]
        if (pair.directory / LOCKS).is_dir():
            paths.append(f"{directory}/{LOCKS}")
    return paths
