"""`provider: reasoning_gym` with the real package: the contract, the package's own rows and scores, and whole runs."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.environments.python import python, told
from tests.support.ors_server import rules
from tests.support.small_training import check_finds_no_fault, two_steps_are_played
from xp.__main__ import main
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import Provider
from xp.envs.config import EnvConfig, load_provider
from xp.episode.episode import Episode
from xp.errors import XpError

OPTIONS: dict[str, Any] = {
    "dataset": ["chain_sum", "leg_counting"],
    "weights": {"chain_sum": 3.0},
    "level": None,
    "config": {},
    "num_train": 400,
    "num_test": 100,
    "seed": 42,
    "prompt": None,
    "answer": "tagged",
}
OWN = """
import json, sys
import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.utils import extract_answer
given = json.load(sys.stdin)
members = [DatasetSpec(*one) for one in given["members"]]
data = reasoning_gym.create_dataset("composite", seed=given["seed"], size=given["size"], datasets=members)
found = [data.score_answer(extract_answer(text), data[index]) for index, text in given["answers"]]
rows = [[data[i]["metadata"]["source_dataset"], data[i]["question"], data[i]["answer"]] for i in range(given["size"])]
print(json.dumps({"scores": found, "rows": rows}))
"""


def puzzles(**options: Any) -> EnvConfig:
    limits = {"create_timeout_s": 300.0, "call_timeout_s": 120.0, "episode_timeout_s": 600.0}
    return rules(
        provider="reasoning_gym", python=python(), options=OPTIONS | options, max_turns=1, **limits
    )


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    yield from lent(load_provider(puzzles(), os.environ))


class TestReasoningGym(ProviderSuite):
    """The contract of every provider."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(load_provider(puzzles(), os.environ))

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(puzzles(), os.environ)


def answers(rows: list[list[str]]) -> list[tuple[int, str]]:
    """A thousand messages: right, decorated, near, wrong and empty ones."""
    draw = random.Random(0)
    forms = (
        "<answer>{}</answer>",
        "so <answer> {}.0 </answer>",
        "<answer>+0{}</answer>",
        "<answer>it is {}</answer>",
    )
    forms += (
        "{}",
        "<answer>{}1</answer>",
        "<answer></answer>",
        "",
        "<answer>1</answer> no, <answer>{}</answer>",
    )
    numbers = [draw.randrange(len(rows)) for _ in range(1000)]
    return [(number, draw.choice(forms).format(rows[number][2])) for number in numbers]


def test_rows_and_a_thousand_scores_are_the_packages_own(provider: Provider) -> None:
    tasks = provider.tasks("train", range(400))
    rows = [[task.spec["dataset"], task.spec["question"], task.spec["answer"]] for task in tasks]
    given = answers(rows)
    members = [["chain_sum", 3.0, {}], ["leg_counting", 1.0, {}]]
    own = told(OWN, {"members": members, "seed": 42, "size": 400, "answers": given})
    assert rows == own["rows"]
    config = puzzles()
    found = []
    for index, text in given:
        task = tasks[index]
        episode = Episode(task, lambda task=task: provider.open(task), config)
        episode.step(text)
        found.append(episode.settle().reward)
    assert found == own["scores"]
    assert {0.0, 1.0} < set(found)


def test_test_tasks_have_seeds_of_no_training_task(provider: Provider) -> None:
    members = [["chain_sum", 3.0, {}], ["leg_counting", 1.0, {}]]
    own = told(OWN, {"members": members, "seed": 42 + 10**9, "size": 100, "answers": []})
    found = provider.tasks("test", range(100))
    assert [
        [one.spec["dataset"], one.spec["question"], one.spec["answer"]] for one in found
    ] == own["rows"]
    trained = {
        task.spec["question"]
        for task in provider.tasks("train", range(400))
        if len(task.spec["question"]) > 90
    }
    assert not trained & {task.spec["question"] for task in found}


def test_a_level_and_a_configuration_make_tasks_harder() -> None:
    def longest(**options: Any) -> int:
        made = load_provider(
            puzzles(dataset=["chain_sum"], weights={}, num_train=60, **options), os.environ
        )
        questions = [task.spec["question"] for task in made.tasks("train", range(60))]
        made.close()
        return max(question.count(" + ") + question.count(" - ") for question in questions)

    assert longest(level=0) <= 2
    assert longest(level=8) > 5
    assert longest(config={"chain_sum": {"min_terms": 9, "max_terms": 9}}) == 8
    assert longest(level=8, config={"chain_sum": {"min_terms": 2, "max_terms": 2}}) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": ["chain_sums"], "weights": {}}, "did you mean chain_sum"),
        ({"config": {"chain_sum": {"terms": 9}}}, "terms"),
    ],
)
def test_what_the_package_does_not_have_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(XpError, match=said):
        load_provider(puzzles(**options), os.environ).splits()


def words(outputs: Path, *more: str) -> list[str]:
    chosen = [
        "env=reasoning_gym",
        "env.options.dataset=chain_sum,leg_counting",
        "env.options.prompt=null",
    ]
    small = [
        "env.options.num_train=24",
        "env.options.num_test=8",
        f"env.python={python()}",
        f"outputs={outputs}",
    ]
    return [*chosen, *small, "model=tiny", *more]


def test_env_check_finds_no_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check_finds_no_fault(
        [*words(tmp_path), "env.limits.create_timeout_s=250", "--seconds", "250"], capsys
    )


def test_a_set_is_prepared_with_a_held_out_split_of_its_own(tmp_path: Path) -> None:
    assert main(["prepare", *words(tmp_path)]) == 0
    (file,) = (tmp_path / "tasks").glob("*/tasks.parquet")
    rows = pq.read_table(file).to_pylist()
    assert Counter(row["split"] for row in rows) == {"train": 24, "test": 8}
    record = json.loads(file.with_name("manifest.json").read_text())
    assert "reasoning-gym 0.1.25" in json.dumps(record)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_training_steps_on_trl_and_the_evaluations_are_played(tmp_path: Path) -> None:
    two_steps_are_played(words(tmp_path), tmp_path)
