"""Each algorithm in the rehearsal: SkyRL's real loop and FSDP workers on gloo, several updates a step.

PPO has a critic, with checkpoint and resume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import leave_untrained

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.skyrl_rehearsal import SMALL, run
from xp.episode.metrics_file import read_metrics
from xp.worker.tiny_model import SHIPPED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

MODULE = '''
"""A user's own: an untrained model earns nothing, so a counter rewards it."""
import itertools

REWARDS = itertools.cycle([1.0, 0.0, 0.25, 0.75, 0.5])

def uneven(outcome):
    return next(REWARDS)

def over_the_worst(episodes):
    return [episode.reward - min(one.reward for one in episodes) for episode in episodes]
'''
# Without the entropy bonus, nothing but advantages moves the weights.
LEARNING = (
    "training.entropy_coef=0.0",
    "training.updates_per_step=2",
    "training.micro_batch_size=1",
    "env.reward_fn=my_algorithms:uneven",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root with the task set, an untrained model and a module of the user's own."""
    root = leave_untrained(tmp_path_factory.mktemp("outputs"), *SMALL, *LEARNING)
    (root / "my_algorithms.py").write_text(MODULE)
    return root


def train(outputs: Path, attempt: int, *overrides: str, name: str = "r") -> list[dict[str, Any]]:
    """The lines of the run's metrics, after this attempt."""
    done = run(outputs, "train", attempt, *LEARNING, *overrides, name=name)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return read_metrics(outputs / "runs" / name / "metrics.jsonl", "train")


@pytest.mark.parametrize("algorithm", ["gspo", "cispo", "reinforce_pp", "custom"])
def test_an_algorithm_trains_what_writes(outputs: Path, algorithm: str) -> None:
    own = ["algorithm.advantage_fn=my_algorithms:over_the_worst"] if algorithm == "custom" else []
    lines = train(
        outputs, 1, f"algorithm={algorithm}", *own, "training.num_steps=2", name=algorithm
    )
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["training/grad_norm"] > 0 and line["training/updates"] == 2 for line in lines)
    assert max(line["training/logprob_gap"] for line in lines) < 1e-5
    assert not any("training/value_loss" in line for line in lines)


def test_a_teacher_in_the_references_place_teaches_without_a_reward(outputs: Path) -> None:
    teacher = f"algorithm.distill.teacher={SHIPPED}"
    lines = train(
        outputs,
        1,
        "algorithm=opd",
        teacher,
        "training.kl_coef=0",
        "training.num_steps=2",
        name="opd",
    )
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["training/grad_norm"] > 0 for line in lines)
    # The policy is untrained: its words surprise the teacher.
    assert all(line["training/distill_kl"] > 1 for line in lines)
    assert not any("training/kl" in line for line in lines)


@pytest.fixture(scope="module")
def ppo(outputs: Path) -> list[dict[str, Any]]:
    """Two steps on two workers, then an attempt that goes on to the third."""
    overrides = (
        "algorithm=ppo",
        "hardware.accelerators_per_node=2",
        "training.critic_learning_rate=0.002",
    )
    train(outputs, 1, *overrides, "training.num_steps=2", name="ppo")
    return train(outputs, 2, *overrides, "training.num_steps=3", name="ppo")


def test_ppo_trains_policy_and_critic_over_attempts(ppo: list[dict[str, Any]]) -> None:
    assert [(line["step"], line["attempt"]) for line in ppo] == [(1, 1), (2, 1), (3, 2)]
    for line in ppo:
        assert line["training/grad_norm"] > 0
        assert line["training/critic_grad_norm"] > 0
        assert line["training/value_loss"] > 0
        assert line["training/logprob_gap"] < 1e-5
    assert ppo[0]["training/critic_learning_rate"] == pytest.approx(0.002)


def critic_shard(outputs: Path, step: int, kind: str) -> Any:
    import torch

    directory = outputs / f"runs/ppo/checkpoints/global_step_{step}/critic"
    return torch.load(directory / f"{kind}_world_size_2_rank_0.pt", weights_only=False)


def test_the_critic_goes_on_from_its_checkpoint(outputs: Path, ppo: list[dict[str, Any]]) -> None:
    """Its optimizer has counted both attempts' updates, and its head moves on by little from where it was."""
    del ppo
    updates = {int(state["step"]) for state in critic_shard(outputs, 3, "optim")["state"].values()}
    assert updates == {6}
    before, after = (
        critic_shard(outputs, step, "model")["value_head.weight"].to_local() for step in (2, 3)
    )
    assert 0 < (after - before).abs().max() <= 2 * 2 * 0.002


def test_the_published_model_is_the_policy_alone(outputs: Path, ppo: list[dict[str, Any]]) -> None:
    from safetensors.torch import load_file

    del ppo
    root = outputs / "runs/ppo"
    assert not any("value_head" in name for name in load_file(root / "model" / "model.safetensors"))
    assert {path.name for path in (root / "checkpoints/huggingface").glob("*/*")} == {"policy"}
