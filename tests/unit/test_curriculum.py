"""Curricula: which tasks of a step are drawn from past rewards, and what a resumed run needs to draw the same."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.episode_facts import played
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.spec import RunSpec
from xp.tasks.config import Purpose
from xp.tasks.curriculum import (
    Curriculum,
    PlayedGroup,
    TaskHistory,
    curriculum_of,
    load_weights_fn,
    num_solved,
    pass_rate,
)
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule

STEPS = 12
SIZE = 4
SMALL = (f"training.prompts_per_step={SIZE}", f"training.num_steps={STEPS}")
BY_RATE = (*SMALL, "env.train.curriculum=pass_rate")
MIXTURE = ("env=whodunit_mini_multiply", *SMALL, "training.max_response_tokens=300")


def rows_of(env: str, count: int, weight: float = 1.0) -> list[TaskRow]:
    return [
        TaskRow(f"{env}/train/{index}", env, Purpose.TRAIN, "train", index, "h", (), "[]", weight)
        for index in range(count)
    ]


ROWS = rows_of("whodunit_mini", 24)
Reward = Callable[[int, int], float | None]
"""Reward of an episode by its task and its number in the group."""


def ids(rows: Sequence[TaskRow]) -> list[str]:
    return [row.task_id for row in rows]


def settle(curriculum: Curriculum, step: int, reward: Reward) -> dict[str, float]:
    tasks = curriculum.tasks(step)
    return curriculum.settle(
        step,
        [
            played(row.task_id, reward(row.index, episode), env=row.env)
            for row in tasks
            for episode in range(4)
        ],
    )


def drawn(spec: RunSpec, reward: Reward, num_steps: int = STEPS) -> list[list[int]]:
    """Tasks of each step, by their index."""
    curriculum = Curriculum(spec, ROWS, num_steps)
    steps = []
    for step in range(num_steps):
        curriculum.begin(step)
        steps.append([row.index for row in curriculum.tasks(step)])
        settle(curriculum, step, reward)
    return steps


def by_index(index: int, episode: int) -> float | None:
    """Tasks of three kinds: never passed, half passed, always passed."""
    return (0.0, float(episode % 2), 1.0)[index % 3]


def always(reward: float) -> Reward:
    return lambda *_: reward


def test_without_a_curriculum_there_is_none() -> None:
    assert curriculum_of(compose([*SMALL]), ROWS, STEPS) is None
    assert curriculum_of(compose([*SMALL, "env.train.curriculum=none"]), ROWS, STEPS) is None


def test_untried_tasks_come_in_the_order_of_a_run_without_a_curriculum() -> None:
    spec = compose([*BY_RATE])
    fixed = schedule(ROWS, len(ROWS), seed=spec.seed, shuffle=True)
    steps = drawn(spec, always(0.0), num_steps=6)
    assert [index for step in steps for index in step] == [row.index for row in fixed]


def test_tasks_within_the_bounds_fill_the_places_that_are_not_for_exploration() -> None:
    words = ["env.train.curriculum_exploration=0", "training.num_steps=40"]
    steps = drawn(compose([*BY_RATE, *words]), by_index, num_steps=40)
    tried: set[int] = set()
    for step in steps:
        # The others are known to be outside.
        assert not {index for index in step if index % 3 != 1} & tried
        tried |= {*step}
    assert tried == set(range(24))
    assert all(len(set(step)) == SIZE for step in steps)


def test_an_untried_task_is_as_likely_as_one_within_the_bounds() -> None:
    """Else a run that is shorter than a pass over its tasks would train on the few that it has tried first."""
    rows = rows_of("whodunit_mini", 400)
    spec = compose([*BY_RATE, "env.train.curriculum_exploration=0"])
    curriculum = Curriculum(spec, rows, STEPS)
    places = []
    for step in range(STEPS):
        curriculum.begin(step)
        places += ids(curriculum.tasks(step))
        settle(
            curriculum,
            step,
            always(0.0) if step % 2 else lambda _, episode: float(episode % 2),
        )
    assert len(set(places)) > 0.9 * len(places)


def test_all_places_for_exploration_pass_over_the_tasks_outside_the_bounds() -> None:
    steps = drawn(compose([*BY_RATE, "env.train.curriculum_exploration=1"]), by_index)
    first = [index for step in steps[:6] for index in step]
    assert sorted(first) == list(range(24))
    outside = [index for step in steps[6:10] for index in step]
    # The one that was not tried for the longest time is next.
    assert outside == [index for index in first if index % 3 != 1][: len(outside)]


def test_the_share_of_exploration_is_that_of_the_spec() -> None:
    words = [f"training.num_steps={400}", "env.train.curriculum_exploration=0.25"]
    steps = drawn(compose([*BY_RATE, *words]), by_index, num_steps=400)
    places = [index for step in steps[50:] for index in step]
    share = sum(index % 3 != 1 for index in places) / len(places)
    assert share == pytest.approx(0.25, abs=0.04)


def test_a_task_that_was_solved_often_enough_is_forgotten() -> None:
    words = ["env.train.curriculum_forget=2", "env.train.curriculum_exploration=1"]
    spec = compose([*BY_RATE, *words, "training.num_steps=40"])
    curriculum = Curriculum(spec, ROWS, 40)
    times: Counter[int] = Counter()
    metrics = []
    for step in range(40):
        curriculum.begin(step)
        times.update(row.index for row in curriculum.tasks(step))
        metrics.append(settle(curriculum, step, by_index))
    assert {times[index] for index in range(24) if index % 3 == 2} == {2}
    assert metrics[-1]["curriculum/forgotten"] == 8.0
    assert metrics[0]["curriculum/untried"] == 1.0
    for line in metrics:
        shares = [line[f"curriculum/{name}"] for name in ("untried", "below", "in_bounds", "above")]
        assert sum(shares) + line["curriculum/forgotten"] / 24 == pytest.approx(1.0)


def test_forgotten_tasks_return_where_a_step_would_have_too_few() -> None:
    words = ["env.train.curriculum_forget=1"]
    steps = drawn(compose([*BY_RATE, *words]), always(1.0))
    assert all(len(set(step)) == SIZE for step in steps)


def test_a_running_pass_rate_follows_the_policy_and_leaves_void_episodes_out() -> None:
    groups = [
        PlayedGroup(0, (0.0, 0.0)),
        PlayedGroup(3, (None, None)),
        PlayedGroup(4, (1.0, None)),
        PlayedGroup(9, (1.0, 1.0)),
    ]
    assert pass_rate([], 1.0) is None
    assert pass_rate(groups[1:2], 1.0) is None
    assert [pass_rate(groups[:number], 1.0) for number in (1, 2, 3, 4)] == [0.0, 0.0, 0.5, 0.75]
    assert [num_solved(groups[:number], 1.0) for number in (1, 3, 4)] == [0, 1, 2]
    assert pass_rate([PlayedGroup(0, (0.5, 0.2))], 0.5) == 0.5


def test_a_step_with_staleness_does_not_see_the_latest_steps() -> None:
    ahead = ("training.max_staleness=1", "algorithm.importance_correction=token_truncate")
    curriculum = Curriculum(compose([*BY_RATE, *ahead]), ROWS, STEPS)
    curriculum.begin(0)
    first = ids(curriculum.tasks(1))
    settle(curriculum, 0, by_index)
    curriculum.begin(1)
    assert ids(curriculum.tasks(1)) == first
    plain = Curriculum(compose([*BY_RATE, *ahead]), ROWS, STEPS)
    plain.begin(0)
    settle(plain, 0, by_index)
    plain.begin(1)
    # Step 2 is drawn when step 1 begins, from the rewards of step 0.
    seen = ids(plain.tasks(2))
    settle(plain, 1, by_index)
    plain.begin(2)
    assert ids(plain.tasks(2)) == seen


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("stop", [1, 5, 8])
def test_a_restored_state_draws_what_the_unbroken_run_draws(
    stop: int, staleness: int, tmp_path: Path
) -> None:
    ahead = [f"training.max_staleness={staleness}"]
    if staleness:
        ahead.append("algorithm.importance_correction=token_truncate")
    spec = compose([*BY_RATE, *ahead])

    def continued(curriculum: Curriculum, first: int) -> list[list[str]]:
        steps = []
        for step in range(first, STEPS):
            curriculum.begin(step)
            steps.append(ids(curriculum.tasks(step)))
            settle(curriculum, step, by_index)
            if step + 1 == stop and first == 0:
                texts.append(curriculum.state(stop).to_json())
        return steps

    texts: list[str] = []
    unbroken = continued(Curriculum(spec, ROWS, STEPS), 0)
    restored = Curriculum(spec, ROWS, STEPS)
    file = tmp_path / "curriculum.json"
    file.write_text(texts[0])
    restored.restore(file)
    assert continued(restored, stop) == unbroken[stop:]


@pytest.mark.parametrize("text", [None, "", "{}", '{"groups": {}, "draws": [1]}'])
def test_a_checkpoint_without_its_rewards_is_not_resumed(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "curriculum.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(XpError, match=re.escape(str(file))) as fault:
        Curriculum(compose([*BY_RATE]), ROWS, STEPS).restore(file)
    assert fault.value.code is ExitCode.RUN_DIR


def test_a_mixture_keeps_its_weights_and_the_order_of_the_member_without_a_curriculum() -> None:
    spec = compose([*MIXTURE, "env.members.whodunit_mini.train.curriculum=pass_rate"])
    rows = [*ROWS, *rows_of("multiply", 9)]
    curriculum = Curriculum(spec, rows, STEPS)
    fixed = schedule(rows, STEPS * SIZE, seed=spec.seed, shuffle=spec.training.shuffle)
    order: list[TaskRow] = []
    for step in range(STEPS):
        curriculum.begin(step)
        order += curriculum.tasks(step)
        settle(curriculum, step, by_index)
    assert [row.env for row in order] == [row.env for row in fixed]
    assert [row for row in order if row.env == "multiply"] == [
        row for row in fixed if row.env == "multiply"
    ]
    assert order != fixed


FUNCTIONS = """
import math

def hardest(tasks):
    return [1.0 if task.index % 3 == 0 else 0.0 for task in tasks]

def fresh(tasks):
    return [1.0 / (1 + sum(len(group.rewards) for group in task.groups)) for task in tasks]

def raises(tasks):
    return [1 / 0 for task in tasks]

def short(tasks):
    return [1.0]

def zeros(tasks):
    return [0.0 for task in tasks]

def negative(tasks):
    return [-1.0, *[1.0 for task in tasks[1:]]]

def unknown(tasks):
    return [math.nan for task in tasks]

NUMBER = 7
"""


@pytest.fixture
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_curricula.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_curricula", raising=False)


def of_function(name: str) -> RunSpec:
    return compose([*SMALL, f"env.train.curriculum=my_curricula:{name}"])


@pytest.mark.usefixtures("_module")
def test_a_function_of_the_users_gives_the_weights() -> None:
    steps = drawn(of_function("hardest"), by_index)
    assert {index % 3 for step in steps for index in step} == {0}
    assert all(len(set(step)) == SIZE for step in steps)
    assert drawn(of_function("hardest"), by_index) == steps
    times = Counter(index for step in drawn(of_function("fresh"), by_index) for index in step)
    assert max(times.values()) <= 4
    assert len(times) > 20


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "raised ZeroDivisionError: .* line 11"),
        ("short", r"gave \[1.0\] for 24 tasks; it must give one finite number for each"),
        ("zeros", ".* and one above 0"),
        ("negative", ".* at least 0 for each"),
        ("unknown", ".* one finite number"),
    ],
)
def test_a_function_that_gives_no_weights_stops_the_run(name: str, words: str) -> None:
    curriculum = Curriculum(of_function(name), ROWS, STEPS)
    with pytest.raises(XpError, match=f"^curriculum my_curricula:{name} {words}") as caught:
        curriculum.begin(0)
    assert caught.value.code is ExitCode.STAGE_FAILED


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize("name", ["my_curricula:NUMBER", "my_curricula:gone", "nowhere:f"])
def test_a_function_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(XpError, match=f"^curriculum {name} cannot be loaded"):
        load_weights_fn(name)


def test_the_documented_function_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs/environments.md").read_text()
    (example,) = re.findall(r"```python\n# my_pkg/curricula\.py\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "my_documented_curricula.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    weigh = load_weights_fn("my_documented_curricula:least_tried")
    groups = (PlayedGroup(0, (1.0,)), PlayedGroup(2, (None,)))
    tasks = [TaskHistory("a", "a/train/0", "train", 0, groups)]
    assert weigh([*tasks, TaskHistory("a", "a/train/1", "train", 1, ())]) == [1 / 3, 1.0]


def test_more_places_than_tasks_repeat_them() -> None:
    spec = compose([*BY_RATE])
    curriculum = Curriculum(spec, ROWS[:3], STEPS)
    curriculum.begin(0)
    assert Counter(ids(curriculum.tasks(0))).most_common()[0][1] == 2
