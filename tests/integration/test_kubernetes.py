"""`launcher=kubernetes`: manifests against the operators' own schemas, and its life with a stub for the cluster."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.cases import few
from tests.support.detaching import DetachingContract, InTheCloud, stub
from tests.support.launching import ROOT, launcher_spec, stage
from xp.composition import compose
from xp.contrib.contracts.launcher import LauncherSuite
from xp.contrib.kubernetes.launcher import KubernetesLauncher, state_of
from xp.contrib.submitted_files import stage_log
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launch, Launcher, StageContext
from xp.execution.launchers.files import copy_package
from xp.planning.plan import build_plan
from xp.planning.refusals import check_limits

pytestmark = pytest.mark.integration

COMMON = (
    "env=whodunit",
    "launcher=kubernetes",
    "model=qwen2.5-3b-instruct",
    "training.group_size=8",
)
PLANS = {
    "trl": (*COMMON, "backend=trl", "hardware=4x8xH100"),
    "skyrl": (*COMMON, "backend=skyrl", "hardware=4x8xH100"),
    "slime": (
        *("recipes=whodunit-slime", "launcher=kubernetes", "hardware=2x8xH200"),
        "launcher.options.ray_version=2.56.0",
    ),
    "one": (*COMMON, "backend=skyrl", "hardware=h100x8"),
}
KINDS = {"trl": "JobSet", "skyrl": "RayJob", "slime": "RayJob", "one": "Job"}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`kubectl` on PATH is the stub; returns its state."""
    return stub("kubectl", "kube_cluster.py", tmp_path, monkeypatch)


def manifests(name: str, tmp_path: Path, *more: str, detach: bool = False) -> dict[str, Any]:
    """Stage -> manifest, as `plan --files` shows them; of a detached run, of all stages under `all`."""
    words = [*PLANS[name], f"launcher.detach={str(detach).lower()}", *more]
    spec = compose([*words, f"outputs={tmp_path / 'outputs'}"])
    stages = build_plan(spec, "some_run").stages
    check_limits(spec.launcher, stages)
    context = Context("some_run", 1, tmp_path / "outputs", "runs/some_run/attempt_1")
    launcher = KubernetesLauncher(spec.launcher, tmp_path / "outputs")
    texts = launcher.preview([StageContext(stage, context) for stage in stages])
    found = {}
    for path, text in texts.items():
        if path.endswith("kubernetes.yaml"):
            found["all" if detach else Path(path).parent.name] = yaml.safe_load(text)
    return found


def strict(schema: Any) -> Any:
    """A structural schema of Kubernetes as JSON Schema; an unknown field is a fault, as in strict validation."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: strict(value) for name, value in its.items()}
        if key == "properties"
        else strict(its)
        for key, its in schema.items()
    }
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if (
        "properties" in schema
        and "type" in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        made.setdefault("additionalProperties", False)
    return made


@cache
def validator_of(kind: str) -> Any:
    """Validates manifests by the schema of their operator; that of a Job is the one of a JobSet's jobs.

    The files have the schema of the published CRD without descriptions and status, with its address and SHA-256:
    KubeRay v1.6.2 (ecae45d9...), JobSet v0.12.0 (d022b876...).
    """
    name = "rayjob" if kind == "RayJob" else "jobset"
    with gzip.open(ROOT / f"tests/recorded/crds/{name}.json.gz") as file:
        schema = strict(json.load(file)["schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    if kind == "Job":
        jobs = schema["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
        schema["properties"]["spec"] = jobs["template"]["properties"]["spec"]
    return jsonschema.validators.validator_for(schema)(schema)


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("name", few(sorted(PLANS, reverse=True), 3))
def test_a_manifest_is_valid_by_its_operators_schema(
    name: str, tmp_path: Path, *, detach: bool
) -> None:
    found = manifests(name, tmp_path, detach=detach)
    kinds = {stage: manifest["kind"] for stage, manifest in found.items()}
    assert kinds["all" if detach else "train"] == KINDS[name]
    if not detach:
        assert kinds["prepare"] == "Job"
    for manifest in found.values():
        validator_of(manifest["kind"]).validate(manifest)
        assert len(manifest["metadata"]["name"]) <= 40


def test_a_ray_job_has_the_machines_of_hardware_and_a_ray_with_a_token(tmp_path: Path) -> None:
    found = manifests(
        "skyrl", tmp_path, "launcher.options.queue=team", "launcher.max_restarts=2", detach=True
    )
    manifest = found["all"]
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    spec = manifest["spec"]
    assert spec["shutdownAfterJobFinishes"]
    assert spec["backoffLimit"] == 2
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == "2.57.0"
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == 3
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        variables = {each["name"]: each for each in container["env"]}
        reference = variables["OPENREWARD_API_KEY"]["valueFrom"]["secretKeyRef"]
        assert reference == {"name": manifest["metadata"]["name"], "key": "OPENREWARD_API_KEY"}
        assert variables["PATH"]["value"].startswith("/xp/python/skyrl-")
        # KubeRay's own init container, which calls `ray health-check`, comes after this one.
        assert [each["name"] for each in pod["initContainers"]] == ["install"]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "xp-outputs"}


def test_a_job_set_starts_each_stage_after_the_one_before(tmp_path: Path) -> None:
    jobs = manifests("trl", tmp_path, detach=True)["all"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == ["prepare", "train", "evaluate"]
    assert [job["template"]["spec"]["completions"] for job in jobs] == [1, 4, 1]
    assert jobs[2]["dependsOn"] == [{"name": "train", "status": "Complete"}]
    (container,) = jobs[1]["template"]["spec"]["template"]["spec"]["containers"]
    (main,) = [each["value"] for each in container["env"] if each["name"] == "XP_MAIN_NODE"]
    assert main.endswith("-train-0-0." + main.partition("-train-0-0.")[0] + ":29500")


@pytest.mark.parametrize(
    ("kind", "status", "state"),
    [
        ("job", {"conditions": [{"type": "Suspended", "status": "True"}]}, "running"),
        ("job", {"conditions": [{"type": "Failed", "status": "True"}]}, "failed"),
        ("rayjob", {"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}, "running"),
        ("rayjob", {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, "succeeded"),
        ("rayjob", {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, "failed"),
        ("jobset", {"restarts": 1}, "running"),
        ("jobset", {"terminalState": "Completed"}, "succeeded"),
        ("jobset", {"terminalState": "Failed"}, "failed"),
    ],
)
def test_the_state_is_that_of_the_operators_own_fields(
    kind: str, status: dict[str, Any], state: str
) -> None:
    assert state_of(kind, status) == state


def test_the_log_of_a_chain_is_divided_by_stages() -> None:
    log = "xp-stage a\nfirst\nxp-exit-code a 0\nxp-stage b\nsecond\n"
    assert stage_log(log, "a") == "first\n"
    assert stage_log(log, "b") == "second\n"
    assert stage_log(log, "c") == ""
    assert stage_log("only\n", "a") == "only\n"


@pytest.mark.slow
class TestKubernetesLauncher(InTheCloud, LauncherSuite):
    """`launcher=kubernetes`, on one node."""

    inherits = False

    @pytest.fixture
    def cloud(self, cluster: Path) -> Path:
        return cluster

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return KubernetesLauncher(launcher_spec("kubernetes", grace_s=1.0), tmp_path / "outputs")

    def test_the_copied_package_is_the_one_that_runs(
        self, launcher: Launcher, context: Context
    ) -> None:
        imports = stage("imports", "import xp; print(xp.__file__)")
        expected = self.cloud / "volume" / context.code / "xp/__init__.py"
        assert self.ended(launcher, imports, context)[1].strip() == str(expected)


@pytest.mark.slow
class TestDetachedKubernetes(InTheCloud, DetachingContract):
    """`launcher=kubernetes launcher.detach=true`: one Job for all stages."""

    name = "kubernetes"
    num_files = 0

    @pytest.fixture
    def cloud(self, cluster: Path) -> Path:
        return cluster

    @pytest.fixture
    def launcher(self, outputs: Path) -> Launcher:
        return KubernetesLauncher(launcher_spec("kubernetes", grace_s=1.0, detach=True), outputs)


def prepared(tmp_path: Path) -> Context:
    context = Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
    copy_package(context.outputs / context.code)
    return context


def test_a_job_that_the_cluster_refuses_leaves_no_secret(cluster: Path, tmp_path: Path) -> None:
    context = replace(prepared(tmp_path), secrets={"KEY": "its value"})
    launcher = KubernetesLauncher(launcher_spec("kubernetes"), context.outputs)
    (cluster / "DENY").touch()
    with pytest.raises(XpError, match="denied"):
        launcher.submit(stage("train", "pass", secrets={"KEY": "KEY"}), context)
    assert [*(cluster / "secrets").iterdir()] == []


def test_a_cluster_that_does_not_answer_says_nothing_of_the_job(
    cluster: Path, tmp_path: Path
) -> None:
    launcher = KubernetesLauncher(launcher_spec("kubernetes"), tmp_path)
    launch = Launch(
        "kubernetes",
        "run/1/train",
        "rayjob.xp-run",
        "runs/run/log.txt",
        "2026-11-29",
    )
    assert launcher.poll(launch) == ExitCode.TERMINATED  # somebody deleted it
    (cluster / "FAIL").touch()
    assert launcher.poll(launch) is None
    with pytest.raises(XpError, match="Unable to connect"):
        launcher.check([], Context("run", 1, tmp_path, "runs/run/attempt_1"))
