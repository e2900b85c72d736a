"""Environments of every kind in Slime's real generate_and_rm_group: OpenEnv, graders, a mix with a rule for each."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.envs_under_test.taught import ANSWERS
from tests.tiny import tokenizer_and_model
from tests.trainers.slime_play import play_group
from tests.trainers.slime_setup import engine, group_of, needs_slime, slime_arguments, tiny_directory, worker_config
from xp.backends.slime.worker.config import WORKER_ATTRIBUTE
from xp.backends.slime.worker.rollout_process import Worker, read_played, worker
from xp.compose import compose
from xp.envs.base import Task
from xp.episode.metrics import episode_metrics
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.prompt import opening_messages, tool_schemas
from xp.planning.episode import episode_config
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow

pytestmark = needs_slime

REPOSITORY = Path(__file__).parents[2]
XPS_PYTHON = Path(os.environ.get("XP_PYTHON", REPOSITORY / ".venv/bin/python"))
needs_xps_python = pytest.mark.skipif(
    not XPS_PYTHON.exists(), reason=f"{XPS_PYTHON} is what xp is started with: make setup"
)
SIZE = 4


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return slime_arguments(tiny_directory(tmp_path_factory.mktemp("slime")))


Open = Callable[..., tuple[Any, Worker]]


@pytest.fixture
def opened(arguments: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Slime's arguments with the worker of a composed mix behind them, as a job finds its environments."""
    from slime.utils import http_utils

    monkeypatch.setattr(http_utils.post, "__defaults__", (1, None))
    monkeypatch.setenv("XP_PYTHON", str(XPS_PYTHON))
    own = SimpleNamespace(**vars(arguments))
    own.xp_root = tmp_path
    made: list[Worker] = []

    def open_worker(*overrides: str) -> tuple[Any, Worker]:
        config = worker_config(tmp_path)
        stage = tmp_path / config.common.stage_dir
        (stage / "episode.json").write_text(episode_config(compose([*overrides])).to_json())
        (tmp_path / "worker.json").write_text(config.to_json())
        setattr(own, WORKER_ATTRIBUTE, str(tmp_path / "worker.json"))
        made.append(worker(own))
        return own, made[-1]

    yield open_worker
    for one in made:
        one.mix.close()


def row_of(mix: EnvironmentMixture, env: str, index: int, split: str = "train") -> TaskRow:
    """A task as preparation writes it, read off a session of the same provider."""
    session = mix._providers[env].open(Task(env, split, index))
    try:
        tools = session.tools()
        messages = tuple(opening_messages(None, session.prompt(), tools))
    finally:
        session.close()
    # A text dialect keeps the tools out of the rows.
    schemas = "[]" if mix._config.members[env].provider == "openenv" else json.dumps(tool_schemas(tools))
    return TaskRow(f"{env}/{split}/{index}", env, Purpose.TRAIN, split, index, "h", messages, schemas, 1.0)


def says(row: TaskRow, *, wrong_at: int) -> Any:
    """The right answer in every episode of a group but one, which begins with another one."""
    tokenizer, _ = tokenizer_and_model()
    asked: list[int] = []

    def answer(ids: list[int]) -> list[int]:
        del ids
        asked.append(len(asked))
        text = ANSWERS[row.env](row)
        if asked[-1] == wrong_at:
            text = re.sub(r"\w+(?=}|</action>)", "0", text)
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    return answer


def play(args: Any, row: TaskRow, group: int = 0) -> list[Any]:
    with engine(args, says(row, wrong_at=1)):
        return play_group(args, group_of(row, SIZE, group))


def outcomes(samples: list[Any]) -> list[Any]:
    return [read_played(sample.metadata).outcome for sample in samples]


@needs_xps_python
def test_an_openenv_environment_is_played_though_slimes_python_has_no_openenv(opened: Open) -> None:
    args, own = opened("env=openenv_echo")
    samples = play(args, row_of(own.mix, "openenv_echo", 3))
    found = outcomes(samples)
    assert {one.status for one in found} == {EpisodeStatus.FINISHED}
    assert sorted(one.num_turns for one in found) == [1, 1, 1, 2]
    assert [sample.reward for sample in samples] == [1.0] * SIZE
    assert sorted(one.step_rewards for one in found) == [(0.0, 1.0), (1.0,), (1.0,), (1.0,)]
    # What the environment echoed is in the second turn's context, and not in the loss.
    (two,) = [sample for sample in samples if read_played(sample.metadata).outcome.num_turns == 2]
    assert 0 < sum(two.loss_mask) < two.response_length


def test_the_grader_of_the_docs_is_played_from_a_module_of_the_users_own(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippet = re.search(
        r"```python\n# my_env\.py\n(class Multiply.*?)```", (REPOSITORY / "docs/environments.md").read_text(), re.DOTALL
    )
    assert snippet is not None
    # A name of this test's own: another test of this process may have imported its `my_env`.
    (tmp_path / "my_env_under_slime.py").write_text(snippet[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    args, own = opened("env=graded", "env.grader=my_env_under_slime:Multiply")
    samples = play(args, row_of(own.mix, "multiply", 5))
    assert sorted(sample.reward for sample in samples) == [0.0, 1.0, 1.0, 1.0]
    assert {one.status for one in outcomes(samples)} == {EpisodeStatus.FINISHED}
    monkeypatch.delitem(sys.modules, "my_env_under_slime")


def test_the_members_of_a_mix_are_rewarded_each_by_its_own_rule_and_counted_apart(opened: Open) -> None:
    args, own = opened("env=whodunit_mini_multiply")
    rows = [row_of(own.mix, "whodunit_mini", 7), row_of(own.mix, "multiply", 7)]
    groups = [play(args, row, number) for number, row in enumerate(rows)]
    solved = {sample.reward for sample in groups[0]}
    assert solved == {outcomes(groups[0])[0].step_rewards[-1]}
    assert max(solved) > 0.0
    # A product counts half: the member's own upper clamp, with 1 as what its grader said.
    assert sorted(sample.reward for sample in groups[1]) == [0.0, 0.5, 0.5, 0.5]
    assert sorted(one.step_rewards for one in outcomes(groups[1])) == [(0.0,), (1.0,), (1.0,), (1.0,)]
    metrics = episode_metrics([read_played(one.metadata) for group in groups for one in group], SIZE, 1.0)
    assert metrics["multiply/reward/avg_raw_reward"] == pytest.approx(0.375)
    assert metrics["whodunit_mini/episodes/num"] == metrics["multiply/episodes/num"] == SIZE
    assert metrics["episodes/void"] == 0.0


@needs_xps_python
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_slimes_own_train_py_plays_an_openenv_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loop, with real Ray and the real router; engines and training are not (test_slime_rehearsal)."""
    from tests.trainers.fake_sglang import FakeSglang, TinyPolicy
    from tests.trainers.test_slime_rehearsal import GROUP, PROMPTS, STEPS, job_of, rehearsed, run, spec_of
    from xp.planning.backend import RunPaths
    from xp.planning.stages import prepare_stage, task_set_place

    monkeypatch.setenv("XP_PYTHON", str(XPS_PYTHON))
    model = tiny_directory(tmp_path)
    spec = spec_of(model, "env=openenv_echo", "env.train.num_tasks=4")
    places = RunPaths(run="runs/r", attempt=1, tasks=task_set_place(spec))
    run(prepare_stage(spec, places, trains=True).job, tmp_path)
    export = tmp_path / "runs/r/exports" / str(STEPS - 1)
    export.mkdir(parents=True)
    for file in model.iterdir():
        (export / file.name).write_bytes(file.read_bytes())
    tokenizer, policy = tokenizer_and_model()

    def says_the_word(ids: list[int]) -> list[int]:
        word = re.findall(r"Say: (\w+)", tokenizer.decode(ids))[-1]
        return [*tokenizer(f"<action>{word}</action>", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    with FakeSglang(TinyPolicy(policy, tokenizer.eos_token_id, says_the_word), tokenizer.decode) as server:
        run(rehearsed(job_of(spec, places, "train"), server, ("--debug-rollout-only",)), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["episodes/num"] == PROMPTS * GROUP and line["episodes/void"] == 0.0 for line in lines)
    assert all(line["reward/avg_raw_reward"] == 1.0 for line in lines)
