"""`training.max_staleness` on TRL: what is played ahead, with which weights, and what the real trainer makes of it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_session import RULES, FakeSession, steady, with_limits
from tests.support.scripts import FakeMix
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from tests.support.trl_played import paid, training
from tests.trainers.trl_ranks import ROWS
from xp.backends.trl.worker.checkpoints import latest_checkpoint
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.envs.base import EnvUnavailable, Task
from xp.episode.episode import Episode
from xp.planning.backend import spec_refusals
from xp.tasks.row import TaskRow
from xp.worker.rollout_thread import RolloutThread

STALE = ("training.max_staleness=1", "algorithm.importance_correction=token_truncate")
SEPARATE = (
    "hardware=a100x4",
    "model=qwen3-4b",
    "backend.engine.placement=separate",
    "backend.engine.accelerators=2",
)


@dataclass(frozen=True)
class Step:
    step: int
    policy: int


def test_one_step_ahead_each_step_but_the_first_is_one_policy_old() -> None:
    ahead = RolloutThread(Step, 1, 5)
    assert [ahead.take(step, lambda: None) for step in range(5)] == [
        Step(n, max(0, n - 1)) for n in range(5)
    ]
    ahead.close()


def test_what_stops_the_thread_is_raised_where_the_training_takes() -> None:
    def play(step: int, policy: int) -> Step:
        if step == 1:
            raise EnvUnavailable("refused")
        return Step(step, policy)

    ahead = RolloutThread(play, 1, 4)
    ahead.take(0, lambda: None)
    with pytest.raises(EnvUnavailable, match="refused"):
        ahead.take(1, lambda: None)
    ahead.close()


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_weights_change_and_evaluations_are_played_while_nothing_else_is(
    is_evaluated: bool,
) -> None:
    playing = threading.Lock()
    weights = [-1]
    evaluated: list[int] = []

    def play(step: int, policy: int) -> Step:
        with playing:
            threading.Event().wait(0.005)
        return Step(step, policy)

    def update() -> None:
        assert not playing.locked()
        weights.append(step)

    def evaluate() -> None:
        assert not playing.locked()
        evaluated.append(weights[-1])

    ahead = RolloutThread(play, 2, 6)
    for step in range(6):
        ahead.take(step, update, evaluate if is_evaluated else None)
    ahead.close()
    assert evaluated == [*range(6)] if is_evaluated else len(weights) > 1


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ("training.max_staleness=1",),
            "algorithm.importance_correction=token_truncate (or another)",
        ),
        (("hardware=a100x4", "model=qwen3-4b", *STALE), "set backend.engine.placement=separate"),
        (
            ("algorithm.importance_correction=token_truncate",),
            "there is nothing to correct; set none",
        ),
        (STALE, ""),
        ((*SEPARATE, *STALE, "training.max_staleness=4"), ""),
    ],
    ids=["uncorrected", "colocated", "nothing to correct", "the policy itself", "a server"],
)
def test_a_plan_says_what_cannot_be_sampled_ahead(overrides: tuple[str, ...], told: str) -> None:
    found = "\n".join(map(str, spec_refusals(compose(overrides))))
    assert told in found
    assert bool(found) == bool(told)


OVERRIDES = (
    *(
        "training.num_steps=4",
        "training.prompts_per_step=2",
        "training.group_size=4",
        "training.micro_batch_size=8",
    ),
    *(
        "training.learning_rate=0.01",
        "training.warmup_updates=0",
        "training.max_logprob_gap=0.0001",
    ),
    *(
        "training.max_tokens_per_turn=12",
        "training.max_response_tokens=300",
        "training.checkpoint_every=2",
    ),
    *(
        "training.keep_checkpoints=9",
        "training.kl_coef=0",
        "algorithm.importance_upper=100",
        *STALE,
    ),
)
RULES_HERE = replace(with_limits(RULES, retries_per_episode=0), provider="local", max_turns=2)


class OneIsDown(FakeMix):
    """The first task's episodes find no environment once in four, and are void."""

    def episode(self, row: TaskRow) -> Episode:
        is_down = row.index == 0 and len(self.episodes) % 4 == 1

        def session() -> FakeSession:
            if is_down:
                raise EnvUnavailable("refused")
            return FakeSession(steady, paid)

        self.episodes.append(Episode(Task(row.env, row.split, row.index), session, self._rules))
        return self.episodes[-1]


class Seen:
    """Weights of the policy at each update, and what the loss got."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def watch(self, trainer: Any) -> None:
        original = trainer._generate_and_score_completions

        def watched(inputs: Any) -> Any:
            found = original(inputs)
            model = trainer.accelerator.unwrap_model(trainer.model)
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            self.steps.append({**found, "state": state})
            return found

        trainer._generate_and_score_completions = watched


@dataclass(frozen=True)
class Training:
    lines: list[dict[str, Any]]
    seen: list[dict[str, Any]]
    trajectories: list[dict[str, Any]]


@contextmanager
def ahead_training(root: Path) -> Iterator[tuple[Any, Seen, Any, TRLTrainConfig]]:
    """A trainer over ROWS, in a directory that holds its model."""
    mix = OneIsDown(RULES_HERE)
    with training(
        root,
        compose(OVERRIDES),
        mix,
        ROWS,
        ROWS,
    ) as (trainer, rollouts, config):
        seen = Seen()
        seen.watch(trainer)
        yield trainer, seen, rollouts, config


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Training]:
    root = tmp_path_factory.mktemp("ahead")
    with ahead_training(root) as (trainer, seen, _, config):
        trainer.train()
    return root, Training(
        lines(Path(config.places.metrics)), seen.steps, lines(root / "trajectories.jsonl")
    )


def test_the_metrics_say_how_old_each_steps_episodes_are(
    trained: tuple[Path, Training],
) -> None:
    _, run = trained
    assert [line["training/staleness"] for line in run.lines] == [0, 1, 1, 1]
    assert [line["step"] for line in run.lines] == [1, 2, 3, 4]
    assert run.lines[0]["episodes/void"] == 1 / 8
    void = (run.seen[0]["completion_mask"] * run.seen[0]["tool_mask"]).sum(-1) == 0
    assert void.sum() == 1
    assert float(run.seen[0]["advantages"][void].abs().sum()) == 0
    assert len(run.trajectories) == 32
    # The older policy's own gap is recorded, and does not stop the run.
    assert (
        run.lines[0]["training/logprob_gap"]
        < 1e-4
        < min(line["training/logprob_gap"] for line in run.lines[1:])
    )


def test_log_probabilities_are_the_writers_and_their_ratio_the_weight(
    trained: tuple[Path, Training],
) -> None:
    import torch

    _, run = trained
    _, model = tokenizer_and_model()
    model = type(model)(model.config).eval()
    assert run.seen
    for step, found in enumerate(run.seen):
        is_trained = (found["completion_mask"] * found["tool_mask"]) > 0
        # A step is written by the policy that the step before it began with.
        for weights, name in (
            (run.seen[max(0, step - 1)], "sampling_per_token_logps"),
            (found, "old_per_token_logps"),
        ):
            model.load_state_dict(weights["state"])
            told = logprobs(model, found)
            torch.testing.assert_close(
                found[name][is_trained],
                told[is_trained],
                atol=2e-4,
                rtol=0,
            )
        gap = (found["old_per_token_logps"] - found["sampling_per_token_logps"])[is_trained]
        torch.testing.assert_close(
            found["importance_sampling_ratio"][is_trained], gap.exp().clamp(max=100)
        )
        assert bool((gap.abs() > 1e-3).any()) == (step > 0)


def logprobs(model: Any, found: dict[str, Any]) -> Any:
    """Log-probabilities of the completions, by a plain forward pass."""
    import torch

    ids = torch.cat([found["prompt_ids"], found["completion_ids"]], 1)
    mask = torch.cat([found["prompt_mask"], found["completion_mask"]], 1)
    with torch.no_grad():
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)
        ).logits
    first = found["prompt_ids"].shape[1]
    return (
        logits[:, first - 1 : -1]
        .log_softmax(-1)
        .gather(-1, found["completion_ids"][..., None])[..., 0]
    )


def test_a_resumed_run_learns_from_what_was_played_before_it_stopped(
    trained: tuple[Path, Training], tmp_path: Path
) -> None:
    import torch

    root, whole = trained
    kept = root / "checkpoints" / "checkpoint-2"
    (ahead,) = json.loads((kept / "played_ahead.rank_0.json").read_text())
    assert ahead["step"] == 2
    assert ahead["policy"] == 1
    with ahead_training(tmp_path) as (trainer, seen, rollouts, config):
        shutil.copytree(kept, Path(config.grpo["output_dir"]) / kept.name)
        checkpoint = latest_checkpoint(Path(config.grpo["output_dir"]))
        assert checkpoint is not None
        rollouts.resume(checkpoint)
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert [line["training/staleness"] for line in lines(Path(config.places.metrics))] == [1, 1]
    # One rollout step of the two was played anew: the one that nobody had begun.
    assert {line["step"] for line in lines(tmp_path / "trajectories.jsonl")} == {4}
    for resumed, before in zip(seen.steps, whole.seen[2:], strict=True):
        torch.testing.assert_close(resumed["completion_ids"], before["completion_ids"])
        torch.testing.assert_close(resumed["advantages"], before["advantages"])


def test_a_failing_run_does_not_wait_for_its_episodes(tmp_path: Path) -> None:
    with ahead_training(tmp_path) as (trainer, _, rollouts, _):
        stuck = threading.Event()
        session = threading.Event()

        def play(engine: Any, numbered: Any, step: int, policy: int) -> Any:
            if step == 1:
                session.set()
                assert stuck.wait(DEADLINE_S)
            return original(engine, numbered, step, policy)

        original = rollouts._play
        rollouts._play = play

        def fail(*_: Any, **__: Any) -> None:
            assert session.wait(DEADLINE_S)
            stuck.set()
            raise RuntimeError("of a test")

        trainer._compute_loss = fail
        with pytest.raises(RuntimeError, match="of a test"):
            trainer.train()
        rollouts.close()
        assert rollouts._ahead._fault is None or type(rollouts._ahead._fault).__name__ == "_Closed"
