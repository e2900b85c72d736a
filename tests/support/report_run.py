"""A run directory with episodes of known words, written by xp's own writers: what a report is tested on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tests.support.evaluations import leave_evaluation
from xp.composition import compose
from xp.envs.base import Message
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.metrics_file import MetricsFile
from xp.episode.outcome import EpisodeResult, EpisodeStatus, Tokens
from xp.episode.trajectory import Trajectory, TrajectoryWriter
from xp.execution.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    update_stage,
    write_record,
)
from xp.results.evaluation.records import EvaluationIdentity, played
from xp.results.evaluation.summary import summary_of
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

ENV = "whodunit_mini"
TOOLS = '[{"type": "function", "function": {"name": "accuse", "parameters": {"type": "object", "properties": {}}}}]'
STAGES = ("prepare", "train", "evaluate")
GROUP = 4


def outcome(reward: float | None, status: EpisodeStatus = EpisodeStatus.FINISHED) -> EpisodeResult:
    if reward is None:
        why = "ResponseLost: the server was gone"
        return EpisodeResult(
            EpisodeStatus.VOID,
            None,
            (),
            0,
            0,
            0,
            why,
            faults=(("accuse", why),),
        )
    return EpisodeResult(
        status,
        reward,
        (reward,),
        1,
        1,
        0,
        reward_steps={"reduce": reward},
    )


def episode(
    phase: str,
    step: int,
    index: int,
    sample: int,
    reward: float | None,
    said: str = "",
    answer: str = "Noted.",
) -> Trajectory:
    """An episode of one turn: a question, a call, its result."""
    text = said or f"I accuse number {index} in {phase} step {step}, sample {sample}."
    messages: list[Message] = [{"role": "user", "content": "Who did it?"}]
    if reward is not None:
        messages += [{"role": "assistant", "content": text}, {"role": "tool", "content": answer}]
    result = {
        "text": answer,
        "reward": reward,
        "finished": True,
        "is_call_error": False,
        "awaits_reply": False,
    }
    call = {
        "turn": 0,
        "message": 2,
        "name": "accuse",
        "arguments": {"suspect": "Rose"},
        "result": result,
    }
    return Trajectory(
        run="run",
        phase=phase,
        step=step + (phase == "train"),
        env=ENV,
        split="train" if phase == "train" else "test",
        index=index,
        sample=sample,
        messages=messages,
        tool_calls=[] if reward is None else [call],
        outcome=outcome(reward),
        started_at=1.0,
        elapsed_s=2.0,
        open_s=0.5,
        env_s=[0.25],
        tokens=Tokens(10, 5, 3),
        tools=TOOLS,
    )


def write_episodes(file: Path, episodes: Sequence[Trajectory]) -> None:
    with TrajectoryWriter(file) as writer:
        for one in episodes:
            writer.write(one)


def make_run(
    outputs: Path,
    name: str,
    *,
    gain: float = 0.5,
    seed: int = 1,
    num_steps: int = 4,
    **changes: Any,
) -> Path:
    """A finished run of `num_steps` steps whose rewards rise, evaluated before and after.

    Args:
        outputs: the outputs root.
        name: of the run.
        gain: share of the 20 held-out tasks that pass after training; none did before.
        seed: of the spec.
        num_steps: rollout steps.
        changes: further keys of the spec, with `__` for the dot.
    """
    run = outputs / "runs" / name
    words = [f"seed={seed}", f"training.num_steps={num_steps}", f"outputs={outputs}"]
    spec = compose(
        [*words, *(f"{key.replace('__', '.')}={value}" for key, value in changes.items())]
    )
    (run / "attempt_1").mkdir(parents=True)
    (run / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False))
    record = begin_attempt(
        RunRecord(name, RunStatus.PENDING, ()), STAGES, Provenance("0.1.0", "3.11", None, None, {})
    )
    for stage in STAGES:
        record = update_stage(record, stage, status=RunStatus.SUCCEEDED, exit_code=0)
    _train(run, num_steps)
    _evaluate(run, gain)
    write_record(run, close_attempt(record, RunStatus.SUCCEEDED))
    return run


def make_evaluation(outputs: Path, name: str, gain: float | None = None) -> Path:
    """An evaluation by `xp eval` with an episode of each of four tasks, which is not finished.

    Args:
        outputs: the outputs root.
        name: of the evaluation.
        gain: share of 20 tasks that pass in a finished evaluation.
    """
    place = outputs / "evaluations" / name
    place.mkdir(parents=True)
    requested = EvaluationIdentity(
        ENV,
        {"kind": "endpoint", "name": "mine"},
        None,
        "tasks",
        "rules",
        {"samples": 1, "pass_threshold": 1.0},
    )
    (place / "request.json").write_text(json.dumps({"schema_version": 1, **asdict(requested)}))
    rewards = [1.0] * 4 if gain is None else [float(index < 20 * gain) for index in range(20)]
    episodes = [episode("eval", 0, index, 0, reward) for index, reward in enumerate(rewards)]
    write_episodes(place / "trajectories/episodes.jsonl", episodes)
    if gain is not None:
        names = [f"{ENV}/test/{index}" for index in range(20)]
        tasks = [
            TaskRow(name, ENV, Purpose.HELD_OUT, "test", at, "0" * 64, (), TOOLS, 1.0)
            for at, name in enumerate(names)
        ]
        value = summary_of(
            requested,
            compose([]),
            [(row, 0) for row in tasks],
            played(place),
            None,
            (None, None),
            name,
        )
        (place / "eval.json").write_text(json.dumps(value))
    return place


def _train(run: Path, num_steps: int) -> None:
    metrics = MetricsFile(run / "metrics.jsonl", "train", 1)
    for step in range(num_steps):
        rewards = {
            (index, sample): float(sample < step) for index in range(2) for sample in range(GROUP)
        }
        episodes = [
            episode("train", step, index, sample, reward)
            for (index, sample), reward in rewards.items()
        ]
        write_episodes(run / "attempt_1/train/trajectories/train.jsonl", episodes)
        played = [
            EpisodeFacts(ENV, f"{ENV}/train/{index}", outcome(reward), 5)
            for (index, _), reward in rewards.items()
        ]
        metrics.write(
            step + 1,
            episode_metrics(played, GROUP, 1.0)
            | {"time/step_s": 2.0, "training/entropy": 1 / (1 + step)},
        )


def _evaluate(run: Path, gain: float) -> None:
    for name, share in (("before", 0.0), ("after", gain)):
        rewards = {index: float(index < 20 * share) for index in range(20)}
        episodes = [
            episode(f"evaluate/{name}", 0, index, 0, reward) for index, reward in rewards.items()
        ]
        write_episodes(run / f"attempt_1/evaluate/trajectories/{name}.jsonl", episodes)
        tasks = {f"{ENV}/test/{index}": [reward] for index, reward in rewards.items()}
        evaluation: dict[str, Any] = {name: tasks}
        leave_evaluation(run, **evaluation)


def data_of(page: Path) -> dict[str, Any]:
    """The data that a written page holds."""
    text = page.read_text()
    found: dict[str, Any] = json.loads(text.split('id="report">', 1)[1].split("</script>", 1)[0])
    return found
