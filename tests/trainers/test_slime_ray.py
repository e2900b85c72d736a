"""A real Ray head takes xp's Slime job, with Slime's program replaced by one that records what it was given."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.launching import forms
from tests.support.ray_cluster import ray_cluster
from tests.support.slime_rehearsal import spec_of
from tests.trainers.slime_setup import tiny_directory
from xp.execution.launchers.ray import RayLauncher
from xp.execution.launchers.ray_head import RayHead
from xp.execution.supervise import dispatch
from xp.planning.plan import Plan, build_plan
from xp.worker.slime_names import STEPS_FLAG

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("sglang") is None, reason="SGLang is in .venv-slime: make rehearse-slime"
    ),
]

CANARY = 'XPCANARY_77/"q" $(touch pwned)'

RECORDER = """
import hashlib, json, os, sys
from pathlib import Path
import ray

@ray.remote
def worker():
    from xp.lib.secrets.environment import with_secrets_file
    secret = hashlib.sha256(with_secrets_file()["MY_KEY"].encode()).hexdigest()
    import slime_of_the_test
    return {"environ": dict(os.environ), "secret": secret, "xp": sys.modules["xp"].__file__}

def value(flag):
    return sys.argv[sys.argv.index(flag) + 1]

recorded = {"argv": sys.argv, "environ": {**os.environ, "MY_KEY": ""}, "worker": ray.get(worker.remote())}
Path("recorded.json").write_text(json.dumps(recorded))
export = Path(value("--save-hf").format(rollout_id=int(value("--num-rollout")) - 1))
export.mkdir(parents=True)
(export / "config.json").write_text("{}")
xp = json.loads(Path(json.loads(Path(value("--custom-config-path")).read_text())["xp_worker"]).read_text())
step = {"stage": "train", "step": 1, "attempt": 1, "time": 0.0}
Path(xp["root"], xp["places"]["run"], "metrics.jsonl").write_text(json.dumps(step) + "\\n")
print("a secret in the log:", os.environ["MY_KEY"])
"""
"""Stands where Slime's train.py would, and is named as what it is in `recorded.json`."""


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    slime = tmp_path / "recorder"
    megatron = tmp_path / "empty-megatron"
    (megatron / "megatron/training").mkdir(parents=True)
    slime.mkdir()
    (slime / "train.py").write_text(RECORDER)
    (slime / "slime_of_the_test.py").touch()
    monkeypatch.setenv("SLIME_PATH", str(slime))
    monkeypatch.setenv("MEGATRON_PATH", str(megatron))
    return slime


@pytest.fixture
def cluster(tmp_path: Path, checkouts: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayHead]:
    del checkouts
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "SLIME_ACCELERATOR")
    }
    head = ray_cluster(environ)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", head.token)
    yield head
    head.stop()


def test_ray_gets_the_whole_command_line_and_no_secret(
    tmp_path: Path, checkouts: Path, cluster: RayHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", CANARY)
    outputs = tmp_path / "outputs"
    model = tiny_directory(outputs)
    plan = _plan(model, cluster.address)
    launcher = RayLauncher(plan.spec.launcher, outputs)
    screen: list[str] = []
    dispatch(plan, launcher, outputs, echo=screen.append)

    recorded = json.loads((outputs / "recorded.json").read_text())
    argv = recorded["argv"]
    driver = recorded["environ"]
    worker = recorded["worker"]
    assert argv[0] == str(checkouts / "train.py")
    job = json.loads(plan.stages[1].job.files[f"runs/{plan.run_id}/attempt_1/train/config.json"])
    flags = [word for word in job["command"]["flags"] if word.startswith("--")]
    # The number of steps, and with it the interval of evaluations, is known when the tasks are: they come last.
    found = [word for word in argv if word.startswith("--")]
    assert sorted(found) == sorted({*flags, STEPS_FLAG, "--custom-config-path"})
    for flag in ("--save", "--load", "--prompt-data"):
        assert argv[argv.index(flag) + 1].startswith(str(outputs))
    assert argv[argv.index("--hf-checkpoint") + 1] == str(model)

    for environ in (driver, worker["environ"]):
        assert environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
        assert str(checkouts) in environ["PYTHONPATH"]
        assert "empty-megatron" in environ["PYTHONPATH"]
    assert worker["secret"] == hashlib.sha256(CANARY.encode()).hexdigest()
    jobs = "\n".join(repr(one) for one in launcher._client().list_jobs())
    assert plan.run_id in jobs
    files = [
        path for path in cluster._directory.rglob("*") if path.is_file() and path.name != "token"
    ]
    kept = b"\n".join(path.read_bytes() for path in files).decode(errors="replace")
    log = (outputs / f"runs/{plan.run_id}/attempt_1/train/log.txt").read_text()
    assert "a secret in the log: [REDACTED]" in log
    for text in (json.dumps(argv), json.dumps(worker["environ"]), jobs, kept, log, "".join(screen)):
        for form in forms(CANARY):
            assert form not in text


def _plan(model: Path, address: str) -> Plan:
    """Preparation and training; an environment that wants a secret."""
    on_ray = ("launcher=ray", f"launcher.address={json.dumps(address)}", "launcher.grace_s=2.0")
    spec = spec_of(
        model, *on_ray, "hardware.num_cpus=2", "env.secrets={MY_KEY: null}", "training.num_steps=1"
    )
    whole = build_plan(spec, "slime-on-ray")
    return Plan(whole.run_id, 1, spec, whole.stages[:2])
