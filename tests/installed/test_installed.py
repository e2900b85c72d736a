"""`python -m xp install` for real: several gigabytes, and every import of a stage's program tried in what it made."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.installed.imports import ROOT, reached
from xp.cli.install import install
from xp.composition import compose
from xp.planning.plan import build_plan
from xp.spec import RunSpec

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        "XP_TEST_INSTALL" not in os.environ, reason="several gigabytes: make test-install"
    ),
]

SPECS = {
    "trl": ("env=whodunit", "hardware=a100x4", "backend=trl"),
    # Its wheel lies on a host of its own, which not every machine reaches: XP_TEST_INSTALL=flash takes it.
    "skyrl": ("env=whodunit", "hardware=a100x4", "backend=skyrl", "backend.attention=sdpa"),
}
BESIDE = {
    # Started as a program, or imported by the trainer itself once it runs.
    "trl": ("vllm.entrypoints.openai.api_server", "trl.trainer.grpo_trainer"),
    "skyrl": (
        "vllm.entrypoints.openai.api_server",
        "vllm_router.launch_router",
        "skyrl.backends.skyrl_train.inference_servers.vllm_server_actor",
        "skyrl.backends.skyrl_train.inference_servers.vllm_router",
        "skyrl.backends.skyrl_train.inference_servers.remote_inference_client",
        "skyrl.backends.skyrl_train.weight_sync.broadcast_strategy",
        "skyrl.backends.skyrl_train.weight_sync.cuda_ipc_strategy",
    ),
}
"""What stages lead to without an import of xp's own."""
TRY = """
import importlib, json, sys
{first}
failed = {{}}
for name in json.loads(sys.stdin.read()):
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{{type(error).__name__}}: {{error}}"
print("\\n" + json.dumps(failed))
"""
FIRST = {
    "trl": "",
    "skyrl": "from xp.backends.skyrl.worker.process import prepare_process; prepare_process()",
}
"""What the stage's program does before it imports its trainer."""


@pytest.fixture(scope="module", params=sorted(SPECS))
def made(request: pytest.FixtureRequest) -> tuple[str, RunSpec, Path]:
    """Backend, spec, and the interpreter of the environment that is there or made now."""
    words = [
        word
        for word in SPECS[request.param]
        if os.environ["XP_TEST_INSTALL"] != "flash" or "sdpa" not in word
    ]
    spec = compose(words)
    python = install(spec)
    assert python is not None
    return request.param, spec, python


def test_every_import_of_a_stage_works(made: tuple[str, RunSpec, Path]) -> None:
    backend, spec, python = made
    jobs = [
        stage.job for stage in build_plan(spec, "x").stages if stage.name in ("train", "evaluate")
    ]
    own, others = reached([job.argv[2] for job in jobs])
    modules = [
        *others,
        *(name for job in jobs for name in job.runtime.packages),
        *BESIDE[backend],
        *own,
    ]
    done = subprocess.run(
        [python, "-c", TRY.format(first=FIRST[backend])],
        input=json.dumps(list(dict.fromkeys(modules))),
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    failed = json.loads(done.stdout.splitlines()[-1])
    print(f"{backend}: {len(modules)} modules, {len(failed)} failed: {failed}")
    assert failed == {}


def test_what_was_installed_is_what_the_lock_says(made: tuple[str, RunSpec, Path]) -> None:
    from xp.planning.runtime import runtime_lock

    _, spec, python = made
    lock = runtime_lock(spec)
    assert lock is not None
    ask = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, check=True, timeout=120
    )
    there = {
        name.lower().replace("_", "-").replace(".", "-"): version
        for name, version in json.loads(done.stdout).items()
    }
    locked = {name.replace(".", "-"): version for name, version in lock.versions().items()}
    assert len(there) > 200
    assert {name: locked.get(name) for name in there} == there
