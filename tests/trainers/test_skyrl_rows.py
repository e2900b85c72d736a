"""Episodes of several rows in SkyRL: xp's rows through its generator, and their advantages by its step-wise trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.tiny import leave_model

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.programs import PROGRAMS, mini
from tests.support.rewriting import PROGRAM, TEXTS, RewritingMix, check_rows
from tests.support.scripts import ROW
from tests.support.sections import replace
from tests.support.skyrl_environments import run_stage
from tests.support.skyrl_trainer import SMALL, trainer
from tests.trainers.skyrl_parts import REHEARSAL, ScriptedClient, play, train_config
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.worker.places import model_place

ROOM = ("training.max_tokens_per_turn=200", "training.max_response_tokens=600")


def test_each_delivered_turn_is_trained_once_in_its_own_context() -> None:
    client = ScriptedClient(list(TEXTS))
    batch = play(client, RewritingMix(), [ROW], train_config(*ROOM, *PROGRAM))
    output = batch.output
    assert output["is_last_step"] == [False, False, True]
    assert {one.instance_id for one in output["trajectory_ids"]} == {"0"}
    assert [rewards[-1] for rewards in output["rewards"]] == [1.0] * 3
    rows = zip(
        output["prompt_token_ids"], output["response_ids"], output["loss_masks"], strict=True
    )
    check_rows([one["ids"] for one in client.asked], list(rows))
    sampled = [[one == -0.5 for one in row] for row in output["rollout_logprobs"]]
    assert sampled == [[bool(one) for one in mask] for mask in output["loss_masks"]]
    assert len({one["seed"] for one in client.asked}) == len(TEXTS)


def test_an_outage_masks_the_rows_of_its_episode() -> None:
    mix = RewritingMix([True])
    config = train_config(*ROOM, *PROGRAM)
    batch = play(
        ScriptedClient(["I say."]),
        mix,
        [replace(ROW, task_id="a")],
        config,
    )
    assert batch.output["stop_reasons"] == ["void"]
    assert not any(map(any, batch.output["loss_masks"]))


EPISODES = [(1, 1.0), (3, 0.0), (2, 0.5), (1, 0.25), (1, None), (3, 1.0), (2, None), (1, None)]
"""Number of rows, and reward; None: void. Two groups, the second of one valid episode."""


@pytest.mark.parametrize("mean", ["token_mean", "sequence_mean", "constant"])
def test_an_episode_counts_once_in_the_baseline_and_in_the_mean(tmp_path: Path, mean: str) -> None:
    made = trainer(tmp_path, train_config(*SMALL, *PROGRAM, f"algorithm.loss_aggregation={mean}"))
    rows = [
        (number, place, reward)
        for number, (count, reward) in enumerate(EPISODES)
        for place in range(count)
    ]
    uids = [str(number // 4) for number, _, _ in rows]
    output = {
        "prompt_token_ids": [[10, 11]] * len(rows),
        "response_ids": [list(range(20, 22 + place)) for _, place, _ in rows],
        "rewards": [[0.0] * (1 + place) + [reward or 0.0] for _, place, reward in rows],
        "loss_masks": [[int(reward is not None)] * (2 + place) for _, place, reward in rows],
        "stop_reasons": ["void" if reward is None else "stop" for _, _, reward in rows],
        "rollout_logprobs": None,
        "is_last_step": [place == EPISODES[number][0] - 1 for number, place, _ in rows],
    }
    generated, uids = made.postprocess_generator_output(output, uids)
    data = made.convert_to_training_input(generated, uids)
    data["values"] = None
    data = made.compute_advantages_and_returns(data)
    valid = np.array([reward for _, reward in EPISODES[:4]])
    expected = dict(enumerate((valid - valid.mean()) / (valid.std(ddof=1) + 1e-6)))
    for row, (number, _, _) in enumerate(rows):
        found = data["advantages"][row][data["response_mask"][row].bool()].numpy()
        assert found == pytest.approx(expected.get(number, 0.0), abs=1e-5)
    boundaries = data.metadata["policy_mini_batch_boundaries"]
    assert boundaries == [(0, len(rows))]
    data["advantages"] = data["response_mask"].float()
    weights = (made._normalize_advantages(data, boundaries)["advantages"] * data["loss_mask"]).sum(
        -1
    )
    tokens = data["loss_mask"].sum(-1)
    num_valid = sum(reward is not None for _, reward in EPISODES)
    for number, (_, reward) in enumerate(EPISODES):
        own = torch.tensor([at for at, (episode, _, _) in enumerate(rows) if episode == number])
        length = (made.cfg.trainer.algorithm.max_seq_len or 1) * num_valid
        share = {
            "token_mean": tokens[own].sum() / tokens.sum(),
            "constant": tokens[own].sum() / length,
        }
        expected_share = share.get(mean, (reward is not None) / num_valid)
        assert float(weights[own].sum()) == pytest.approx(float(expected_share), rel=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_trains_two_steps(
    tmp_path: Path, program: Callable[[Path], tuple[str, ...]]
) -> None:
    overrides = (
        *program(tmp_path),
        *("training.max_response_tokens=200", "training.max_tokens_per_turn=12"),
    )
    leave_model(tmp_path / model_place(compose([*REHEARSAL, *overrides]).model))
    for name in ("prepare", "train"):
        done = run_stage(tmp_path, name, overrides)
        assert done.returncode == 0, f"{name}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    lines = read_metrics(tmp_path / "runs/r/metrics.jsonl", "train")
    assert [(line["episodes/num"], line["episodes/void"]) for line in lines] == [(4.0, 0.0)] * 2
    assert all(line["grader/program_rows"] > 3.0 or program is mini for line in lines)
    assert all(0 < line["training/logprob_gap"] < 1e-4 for line in lines)
