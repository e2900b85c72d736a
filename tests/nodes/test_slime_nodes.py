"""Slime's real train.py on two nodes: with a Ray of the batch job's nodes under Slurm, and with a Ray that is there.

Its rollout, router and Ray are real; GPUs are numbers, nothing trains, and the engine is the fake one, which both nodes
reach. What its training actors would do without accelerators is a gloo group of Ray's processes on both nodes.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.nodes.conftest import ADDRESSES, RayNodes, on_node, ray_nodes
from tests.support.child import ended, json_lines
from tests.support.job_clusters import of_job
from tests.support.slime_rehearsal import GROUP, PROMPTS, STEPS, rehearsed, spec_of
from tests.support.tiny import tokenizer_and_model
from tests.trainers.fake_sglang import FakeSglang, TinyPolicy
from tests.trainers.slime_setup import detective, needs_slime, tiny_directory
from xp.execution.launchers.ray import RayLauncher
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.supervise import dispatch
from xp.lib.private_ray import PRETENDED_GPUS
from xp.planning.job import Job, Resources
from xp.planning.plan import Plan, build_plan

pytestmark = needs_slime

BRIDGE = "10.77.0.254"
"""This machine's address in the network of the nodes."""
TOGETHER = """
import os, ray
from xp.backends.slime.worker.config import SlimeCommand
from xp.backends.slime.worker.program import _ray

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
class Rank:
    def address(self):
        return ray.util.get_node_ip_address()

    def sums(self, rank, main):
        import torch
        from torch.distributed import all_reduce, init_process_group
        init_process_group("gloo", init_method=f"tcp://{main}", rank=rank, world_size=2)
        value = torch.tensor([float(rank + 1)])
        all_reduce(value)
        return float(value)

with _ray(SlimeCommand((), (), (), {}, "SLIME_PATH")):
    ranks = [Rank.remote(), Rank.remote()]
    where = ray.get([rank.address.remote() for rank in ranks])
    print(sorted(where), ray.get([rank.sums.remote(at, f"{where[0]}:24567") for at, rank in enumerate(ranks)]))
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeSglang]:
    tokenizer, model = tokenizer_and_model()
    policy = TinyPolicy(model, tokenizer.eos_token_id, detective(random.Random(3)))
    with FakeSglang(policy, tokenizer.decode, BRIDGE) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    yield from ray_nodes(
        tmp_path_factory.mktemp("ray"), [sys.executable], "--num-cpus=8", "--num-gpus=1"
    )


def rollouts(outputs: Path, engine: FakeSglang, *launcher: str) -> Plan:
    """Run preparation, and training without updates; Ray counts one accelerator (not real) on each of two nodes."""
    places = ("hardware.num_nodes=2", "hardware.accelerators_per_node=1", "hardware.num_cpus=3")
    whole = build_plan(
        spec_of(tiny_directory(outputs), *launcher, "launcher.grace_s=2.0", *places), "slime-nodes"
    )
    prepare, train = whole.stages[:2]
    # What a training would have exported at the end.
    export = {f"runs/{whole.run_id}/exports/{STEPS - 1}/config.json": "{}"}
    job: Job = rehearsed(train.job, engine, ("--debug-rollout-only",))
    job = replace(
        job,
        files={**job.files, **export},
        resources=Resources("cpu", 0, 2, 3, 4.0),
        env={**job.env, PRETENDED_GPUS: "1"},
    )
    return Plan(
        whole.run_id,
        1,
        whole.spec,
        (prepare, replace(train, job=job)),
    )


def played(outputs: Path) -> None:
    """Both steps were played, and Slime put an accelerator's bundle on each node."""
    (run,) = outputs.glob("runs/*")
    lines = json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(
        line["episodes/num"] == PROMPTS * GROUP and line["episodes/void"] == 0.0 for line in lines
    )
    said = (run / "attempt_1/train/log.txt").read_text()
    assert all(f"node: {address}, gpu: 0" in said for address in ADDRESSES)


def test_slimes_own_loop_on_a_ray_of_the_batch_jobs_nodes(
    tmp_path: Path, engine: FakeSglang, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    outputs = tmp_path / "outputs"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    plan = rollouts(outputs, engine, "launcher=slurm")
    dispatch(plan, SlurmLauncher(plan.spec.launcher, outputs), outputs, echo=lambda _: None)
    played(outputs)
    assert not list((home / ".xp/secrets").rglob("*.token"))
    assert not of_job(home)


def test_slimes_own_loop_on_two_nodes_of_ray(
    tmp_path: Path, engine: FakeSglang, cluster: RayNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = tmp_path / "outputs"
    for name, value in cluster.environ.items():
        monkeypatch.setenv(name, value)
    plan = rollouts(
        outputs, engine, "launcher=ray", f"launcher.address={json.dumps(cluster.address)}"
    )
    dispatch(plan, RayLauncher(plan.spec.launcher, outputs), outputs, echo=lambda _: None)
    played(outputs)


def test_slimes_processes_on_two_nodes_of_ray_form_a_gloo_group(
    tmp_path: Path, cluster: RayNodes
) -> None:
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, **cluster.environ, "RAY_ADDRESS": f"{ADDRESSES[0]}:26379"}
    environ["PYTHONPATH"] = os.pathsep.join([root, environ["PYTHONPATH"]])
    command = on_node(1, sys.executable, "-c", TOGETHER)
    run = ended(command, cwd=tmp_path, env=environ)
    assert run.stdout.splitlines()[-1:] == [f"{list(ADDRESSES)} [3.0, 3.0]"], (
        run.stdout + run.stderr[-4000:]
    )
