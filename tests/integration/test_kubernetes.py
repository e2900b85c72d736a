"""`launcher=kubernetes`: manifests against the operators' own schemas, and its life with a stub for the cluster."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import threading
from dataclasses import replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.detaching import DetachingContract, InTheCloud, stub
from tests.support.launching import CPU, ROOT, launcher_spec, stage
from xp.checks.contracts.launcher import LauncherSuite
from xp.composition import compose
from xp.contrib.kubernetes.launcher import KubernetesLauncher, state_of
from xp.contrib.kubernetes.manifest import API_VERSION, KIND
from xp.contrib.submitted_files import stage_log, to_yaml
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launch, Launcher
from xp.execution.launchers.files import copy_package
from xp.planning.job import Runtime, Stage
from xp.planning.plan import build_plan
from xp.planning.refusals import check_limits

pytestmark = pytest.mark.integration

KUBECTL = shutil.which("kubectl")
"""The real program, before a stub takes its place on PATH."""
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
    texts = launcher.preview([(stage, context) for stage in stages])
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
@pytest.mark.parametrize("name", sorted(PLANS))
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


def test_the_schema_refuses_a_field_that_the_operator_does_not_know(tmp_path: Path) -> None:
    manifest = manifests("skyrl", tmp_path)["train"]
    manifest["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containerz"] = []
    with pytest.raises(jsonschema.ValidationError, match="containerz"):
        validator_of("RayJob").validate(manifest)


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


def test_slime_runs_in_its_image_with_xps_packages_before_ray_starts(tmp_path: Path) -> None:
    cluster = manifests("slime", tmp_path)["train"]["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == "2.56.0"
    (container,) = cluster["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert container["image"].startswith("slimerl/slime")
    assert " ".join(container["command"]).startswith("python3 -m pip install '")
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["PYTHONPATH"] == "/outputs/runs/some_run/attempt_1/code:/root/slime"


def test_a_ray_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(XpError, match=r"set launcher\.options\.ray_version") as caught:
        manifests("slime", tmp_path, "launcher.options.ray_version=null")
    assert caught.value.code == ExitCode.PLAN


class Discovery(BaseHTTPRequestHandler):
    """A cluster's answers about its kinds, which `kubectl --dry-run=client` asks for; it has nothing else."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        groups = [
            {"groupVersion": version, "version": version.partition("/")[2]}
            for version in API_VERSION.values()
        ]
        answers: dict[str, Any] = {
            "api": {"kind": "APIVersions", "versions": ["v1"]},
            "api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "apis": {
                "kind": "APIGroupList",
                "groups": [
                    {"name": each["groupVersion"].partition("/")[0], "versions": [each]}
                    for each in groups
                ],
            },
        }
        for kind, version in API_VERSION.items():
            row = {"name": f"{kind}s", "singularName": kind, "namespaced": True, "kind": KIND[kind]}
            resources = [{**row, "verbs": ["create", "get"]}]
            answers[f"apis/{version}"] = {
                "kind": "APIResourceList",
                "groupVersion": version,
                "resources": resources,
            }
        body = json.dumps(answers.get(path, {"kind": "Status", "code": 404})).encode()
        self.send_response(200 if path in answers else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not here")
@pytest.mark.parametrize("name", sorted(PLANS))
def test_kubectl_would_create_the_object(name: str, tmp_path: Path) -> None:
    file = tmp_path / "kubernetes.yaml"
    manifest = manifests(name, tmp_path)["train"]
    file.write_text(to_yaml([manifest]))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Discovery)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = ["create", "--dry-run=client", "--validate=false", "--filename", str(file)]
    address = f"--server=http://127.0.0.1:{server.server_port}"
    done = subprocess.run(
        [str(KUBECTL), address, *words, "--output=json"],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["kind"] == KINDS[name]
    assert shown["spec"] == manifest["spec"]


@pytest.mark.parametrize(
    ("kind", "status", "state"),
    [
        ("job", {}, "running"),
        ("job", {"conditions": [{"type": "Suspended", "status": "True"}]}, "running"),
        ("job", {"conditions": [{"type": "FailureTarget", "status": "True"}]}, "running"),
        ("job", {"conditions": [{"type": "Failed", "status": "True"}]}, "failed"),
        ("rayjob", {"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}, "running"),
        ("rayjob", {"jobDeploymentStatus": "Suspended"}, "running"),
        ("rayjob", {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, "succeeded"),
        ("rayjob", {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, "failed"),
        ("rayjob", {"jobDeploymentStatus": "ValidationFailed"}, "failed"),
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


def on_two_nodes(name: str, code: str, *packages: str) -> Stage:
    made = stage(name, code)
    runtime = Runtime(packages=packages)
    job = replace(made.job, resources=replace(CPU, num_nodes=2), runtime=runtime)
    return replace(made, job=job)


def prepared(tmp_path: Path) -> Context:
    context = Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
    copy_package(context.outputs / context.code)
    return context


SHOWS = "import os; print('node', os.environ['XP_NODE'], 'of', os.environ['XP_NODES'], os.environ['XP_MAIN_NODE'])"


@pytest.mark.slow
def test_a_program_runs_on_every_node_and_its_log_is_that_of_the_first(
    cluster: Path, tmp_path: Path
) -> None:
    context = prepared(tmp_path)
    launcher = KubernetesLauncher(launcher_spec("kubernetes", grace_s=1.0), context.outputs)
    code = SHOWS + "\nopen(os.environ['XP_NODE'], 'w')"
    launch = launcher.submit(on_two_nodes("train", code), context)
    assert launch.native_id.startswith("jobset.")
    assert launcher.wait(launch, lambda _: None) == 0
    assert (context.outputs / launch.log).read_text() == "node 0 of 2 127.0.0.1:29500\n"
    assert (cluster / "volume/1").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_node_that_fails_ends_the_stage_with_its_code(tmp_path: Path) -> None:
    context = prepared(tmp_path)
    launcher = KubernetesLauncher(launcher_spec("kubernetes", grace_s=1.0), context.outputs)
    code = "import os; raise SystemExit(13 if os.environ['XP_NODE'] == '0' else 0)"
    launch = launcher.submit(on_two_nodes("train", code), context)
    assert launcher.wait(launch, lambda _: None) == 13


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_ray_jobs_stages_run_on_its_head_one_after_the_other(tmp_path: Path) -> None:
    context = prepared(tmp_path)
    spec = launcher_spec("kubernetes", grace_s=1.0, detach=True)
    launcher = KubernetesLauncher(spec, context.outputs)
    stages = [
        stage("prepare", "import os; print('CUDA_VISIBLE_DEVICES' in os.environ)"),
        on_two_nodes("train", "raise SystemExit(7)", "ray"),
    ]
    launches = launcher.submit_all([(each, context) for each in stages])
    assert {launch.native_id.partition(".")[0] for launch in launches} == {"rayjob"}
    assert launcher.wait(launches[1], lambda _: None) == 7
    assert launcher.poll(launches[0]) == 0
    launcher.fetch(launches[0])
    assert (context.outputs / launches[0].log).read_text() == "False\n"


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
    launch = Launch("kubernetes", "run/1/train", "rayjob.xp-run", "runs/run/log.txt", "2026-11-29")
    assert launcher.poll(launch) == ExitCode.TERMINATED  # somebody deleted it
    (cluster / "FAIL").touch()
    assert launcher.poll(launch) is None
    with pytest.raises(XpError, match="Unable to connect"):
        launcher.check([], Context("run", 1, tmp_path, "runs/run/attempt_1"))
