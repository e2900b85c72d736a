"""`launcher=skypilot`: its life with a stub for the clouds; its YAML, held against the real client's schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import ended
from tests.support.detaching import DetachingContract, InTheCloud, stub
from tests.support.launching import launcher_spec
from xp.composition import compose
from xp.contrib.contracts.launcher import LauncherSuite
from xp.contrib.skypilot.launcher import SkypilotLauncher
from xp.contrib.submitted_files import code_in
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launcher, StageContext
from xp.planning.plan import build_plan
from xp.planning.refusals import check_limits

pytestmark = pytest.mark.integration

CLIENT = os.environ.get("SKYPILOT_PYTHON")
needs_client = pytest.mark.skipif(
    CLIENT is None, reason="SkyPilot's own client is not here: make test-skypilot"
)
BUCKET = {"bucket": "mine"}


@pytest.fixture(autouse=True)
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`sky` on PATH is the stub; returns its state."""
    return stub("sky", "sky_cloud.py", tmp_path, monkeypatch)


@pytest.mark.slow
class TestSkypilotLauncher(InTheCloud, LauncherSuite):
    """`launcher=skypilot`."""

    inherits = False

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return SkypilotLauncher(
            launcher_spec("skypilot", options=BUCKET, grace_s=1.0), tmp_path / "outputs"
        )


@pytest.mark.slow
class TestDetachedSkypilot(InTheCloud, DetachingContract):
    """`launcher=skypilot launcher.detach=true`."""

    name = "skypilot"
    num_files = 0

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"options": BUCKET}

    @pytest.fixture
    def launcher(self, outputs: Path, options: dict[str, Any]) -> Launcher:
        return SkypilotLauncher(
            launcher_spec("skypilot", grace_s=1.0, detach=True, **options), outputs
        )


PLANS = {
    "trl": (
        "env=whodunit",
        "backend=trl",
        "hardware=a100x4",
        "launcher=skypilot",
        "launcher.options.bucket=mine",
    ),
    "skyrl": (
        *("env=whodunit", "backend=skyrl", "hardware=h100x8", "launcher=skypilot"),
        *("launcher.options.infra=k8s", "launcher.options.volume=xp-outputs"),
    ),
    "slime": ("recipes=whodunit-slime", "launcher=skypilot", "launcher.options.bucket=s3://mine"),
    "nodes": (
        *("env=whodunit", "backend=skyrl", "hardware=4x8xB300", "model=qwen2.5-3b-instruct"),
        *("training.group_size=8", "launcher=skypilot", "launcher.options.bucket=mine"),
        *("launcher.options.spot=true", "launcher.max_restarts=3"),
    ),
    "torchrun": (
        *("env=whodunit", "backend=trl", "hardware=4x4xGB200", "model=qwen2.5-3b-instruct"),
        *("training.group_size=8", "launcher=skypilot", "launcher.options.bucket=mine"),
    ),
    "spot": (
        *(
            "env=multiply",
            "hardware=cpu",
            "model=tiny",
            "launcher=skypilot",
            "launcher.options.bucket=mine",
        ),
        *(
            "launcher.options.spot=true",
            "launcher.max_restarts=2",
            "launcher.options.infra=aws/us-east-1",
        ),
    ),
}


def files(words: tuple[str, ...], tmp_path: Path, *, detach: bool) -> list[str]:
    """The YAML files of a plan."""
    spec = compose(
        [*words, f"launcher.detach={str(detach).lower()}", f"outputs={tmp_path / 'outputs'}"]
    )
    made = build_plan(spec, "some_run")
    context = Context("some_run", 1, tmp_path / "outputs", "runs/some_run/attempt_1")
    launcher = SkypilotLauncher(spec.launcher, tmp_path / "outputs")
    return list(launcher.preview([StageContext(stage, context) for stage in made.stages]).values())


LOAD = """
import json, sys
from jsonschema import validate
from sky.utils import dag_utils, schemas
texts, mounts = json.load(sys.stdin)
for mount in mounts:
    validate(mount, schemas.get_storage_schema())
try:
    dag_utils.load_chain_dag_from_yaml_str(texts[0].replace("resources:", "resourcez:"))
    sys.exit("the client takes anything")
except ValueError as error:
    assert "resourcez" in str(error), error
found = []
for text in texts:
    secrets = [("OPENREWARD_API_KEY", "x"), ("OPENAI_API_KEY", "x"), ("RAY_AUTH_TOKEN", "x")]
    used = [pair for pair in secrets if pair[0] in text]
    dag = dag_utils.load_chain_dag_from_yaml_str(text, secrets_overrides=used)
    for task in dag.tasks:
        task.validate_name()
        for one in task.resources:
            found.append([dag.name, task.name, one.accelerators, one.cpus, one.memory, one.use_spot, one.infra.cloud,
                          task.num_nodes, one.job_recovery])
print(json.dumps(found))
"""


@needs_client
@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("name", sorted(PLANS))
def test_the_real_client_takes_the_yaml_and_understands_what_it_asks_for(
    name: str, tmp_path: Path, *, detach: bool
) -> None:
    """The client looks for a bucket in its cloud, so it is left out here and held against its schema alone."""
    mounts: list[dict[str, str]] = []
    texts = [_without_storage(text, mounts) for text in files(PLANS[name], tmp_path, detach=detach)]
    environ = {**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "HOME": str(tmp_path)}
    done = ended([str(CLIENT), "-c", LOAD], env=environ, given=json.dumps([texts, mounts]))
    assert done.returncode == 0, done.stderr[-3000:]
    found = {row[1]: row for row in json.loads(done.stdout.splitlines()[-1])}
    gpus = {
        "trl": {"A100-80GB": 4},
        "skyrl": {"H100": 8},
        "slime": {"H200": 8},
        "nodes": {"B300": 8},
        "torchrun": {"GB200": 4},
        "spot": None,
    }[name]
    train = next(row for task, row in found.items() if "train" in task)
    assert train[2] == gpus
    assert train[7] == (4 if name in ("nodes", "torchrun") else 1)
    if name == "spot":
        assert train[5:7] == [True, "AWS"]
    if name == "nodes":
        assert train[5]
        assert train[8]["max_restarts_on_errors"] == 3


def test_ray_of_several_nodes_is_started_by_skypilots_own_template(tmp_path: Path) -> None:
    import yaml

    (text,) = files(PLANS["nodes"], tmp_path, detach=True)
    prepare, train, evaluate = list(yaml.safe_load_all(text))[1:]
    assert "num_nodes" not in prepare
    assert "num_nodes" not in evaluate
    assert train["num_nodes"] == 4
    assert train["envs"]["RAY_AUTH_MODE"] == "token"
    assert train["secrets"]["RAY_AUTH_TOKEN"] is None
    lines = train["run"].splitlines()
    start = next(at for at, line in enumerate(lines) if "sky_templates/ray/start_cluster" in line)
    # The other nodes keep their part of the cluster, and only the first one runs the stage.
    assert lines[start + 1] == '[ "$XP_NODE" = 0 ] || exit 0'
    assert lines[-1].startswith("run_stage train ")


def _without_storage(text: str, left_out: list[dict[str, str]]) -> str:
    import yaml

    documents = list(yaml.safe_load_all(text))
    for one in documents:
        mounts = one.get("file_mounts", {})
        for place in [place for place, local in mounts.items() if not isinstance(local, str)]:
            left_out.append(mounts.pop(place))
        for local in mounts.values():  # the client looks whether they are there
            path = Path(local)
            (path.parent if path.suffix else path).mkdir(parents=True, exist_ok=True)
            if path.suffix:
                path.touch()
    return yaml.safe_dump_all(documents, sort_keys=False)


def test_a_chain_has_the_stages_in_order_and_secrets_by_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import yaml

    monkeypatch.setenv("OPENREWARD_API_KEY", "XPCANARY" + "a" * 32)
    (text,) = files(PLANS["trl"], tmp_path, detach=True)
    head, *stages = yaml.safe_load_all(text)
    assert list(head) == ["name"]
    assert [one["name"] for one in stages] == ["prepare", "train", "evaluate"]
    assert stages[1]["secrets"] == {"OPENREWARD_API_KEY": None}
    assert "XPCANARY" not in text
    assert stages[1]["file_mounts"]["/outputs"] == {"name": "mine", "mode": "MOUNT_CACHED"}
    assert (
        "--require-hashes --no-deps --requirements /xp/environment/requirements.lock"
        in stages[1]["setup"]
    )


def test_what_skypilot_lacks_is_refused_while_planning() -> None:
    words = ["env=multiply", "hardware=a100x4", "launcher=skypilot", "launcher.options.bucket=b"]
    spec = compose([*words, "backend=trl", "backend.runtime.python=python3"])
    with pytest.raises(
        XpError, match=r"backend\.runtime\.python and project_env name paths of this machine"
    ) as caught:
        check_limits(spec.launcher, build_plan(spec, "x").stages)
    assert caught.value.code == ExitCode.PLAN


def test_the_exit_code_is_read_from_the_end_of_the_log() -> None:
    log = "xp-exit-code train 1\n(head, rank=0, pid=12) xp-exit-code train 13\n"
    assert code_in(log, "train") == 13
    assert code_in(log, "prepare") is None
    assert code_in("it said xp-exit-code train 7 somewhere\n", "train") is None
