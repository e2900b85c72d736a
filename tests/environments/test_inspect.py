"""`provider: inspect` with the real package: inspect_ai's own evaluations of the same messages give the same scores."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.environments import python as environments
from tests.environments.python import ROOT, Script, inspect_python, told
from tests.stubs.chat_server import ChatServer, serving
from tests.support.ors_server import rules
from tests.support.small_training import check_finds_no_fault, two_steps_are_played
from xp.__main__ import main
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import Provider
from xp.envs.config import EnvConfig, load_provider
from xp.episode.outcome import EpisodeStatus
from xp.errors import XpError

FILE = ROOT / "tests/environments/packages/inspect_samples.py"
OWN = (ROOT / "tests/environments/own_inspect.py").read_text()
NONE: dict[str, Any] = {"arguments": {}, "score": None, "roles": {}, "prices": {}}

pytestmark = pytest.mark.timeout(900)


def task_of(
    name: str, max_turns: int = 6, secrets: tuple[str, ...] = (), **options: Any
) -> EnvConfig:
    limits = {"create_timeout_s": 200.0, "call_timeout_s": 100.0, "episode_timeout_s": 400.0}
    return rules(
        provider="inspect",
        target=f"{FILE}@{name}",
        python=inspect_python(),
        options=NONE | options,
        max_turns=max_turns,
        secrets=secrets,
        **limits,
    )


class TestInspect(ProviderSuite):
    """The contract of every provider."""

    split = "all"

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(load_provider(task_of("sums"), os.environ))

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(task_of("sums"), os.environ)


played = partial(environments.played, split="all")
rewards = partial(environments.rewards, split="all")


def own(name: str, scripts: list[tuple[int, Script]]) -> list[dict[str, float]]:
    """The scores of inspect_ai's own evaluations."""
    found: list[dict[str, float]] = told(
        OWN, {"target": f"{FILE}@{name}", "scripts": scripts}, inspect_python()
    )
    return found


@pytest.mark.parametrize(
    ("name", "score", "scripts"),
    [
        (
            "sums",
            "match",
            [
                (3, [("add", {"x": 3, "y": 3}), "It is 6"]),
                (2, [("add", {"x": -2, "y": 2}), ("add", {"x": "two", "y": 2}), "I do not know"]),
                (1, ["2"]),
                (1, ["3"]),
            ],
        ),
        (
            "choices",
            "choice",
            [(0, ["ANSWER: B"]), (0, ["ANSWER: A"]), (1, ["ANSWER: A"]), (1, ["apple"])],
        ),
    ],
)
def test_tools_and_choices_of_a_task_agree(
    name: str, score: str, scripts: list[tuple[int, Script]]
) -> None:
    found = rewards(task_of(name), scripts)
    assert found == [one[score] for one in own(name, scripts)] == [1.0, 0.0, 1.0, 0.0]


def test_a_task_that_shuffles_without_a_seed_is_the_same_in_every_process() -> None:
    found = []
    for _ in range(2):
        provider = load_provider(task_of("shuffled"), os.environ)
        found.append([task.spec for task in provider.tasks("all", range(20))])
        provider.close()
    assert found[0] == found[1]
    assert [one["id"] for one in found[0]] == list(range(1, 21))
    assert found[0][0]["input"] != "Which is 0?" or found[0][1]["input"] != "Which is 1?"
    assert len({str(one["target"]) for one in found[0]}) > 1


def test_a_dialogue_with_several_scores_agrees() -> None:
    scripts: list[tuple[int, Script]] = [(0, ["a cat", "an owl"]), (0, ["a cat", "a dog", "a cow"])]
    expected = own("dialogue", scripts)
    for name in ("guessed.found", "guessed.brief", "includes"):
        assert rewards(task_of("dialogue", score=name), scripts) == [one[name] for one in expected]
    (outcome,) = played(task_of("dialogue"), scripts[:1])
    assert outcome.void_reason is not None
    assert "options.score one of guessed.brief, guessed.found, includes" in outcome.void_reason


def test_a_judge_has_a_role_and_its_price_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "of-the-judge")

    def judge(body: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "content": "GRADE: C"
            if "scattering" in str(body["messages"]).partition("Submission")[2]
            else "GRADE: I"
        }

    with serving(ChatServer(write=judge)) as server:
        role = {
            "model": "openai-api/mine/judge",
            "base_url": server.url,
            "api_key_var": "JUDGE_KEY",
        }
        config = task_of(
            "judged",
            secrets={"JUDGE_KEY": None},
            roles={"grader": role},
            prices={"openai-api/mine/judge": (2.0, 8.0)},
        )
        (outcome,) = played(config, [(0, ["By scattering."])])
        assert "Bearer of-the-judge" in str(server.headers)
    assert outcome.reward == 1.0
    used = outcome.judges
    assert used["prompt_tokens"] > 0
    assert used["cost_usd"] == pytest.approx(
        (2 * used["prompt_tokens"] + 8 * used["completion_tokens"]) / 1e6
    )


@pytest.mark.parametrize(
    ("name", "said", "reason"),
    [
        ("judged", "By scattering.", "give a judge a model of its own by options.roles"),
        ("breaks", "words", "'rather good', which is no number"),
    ],
)
def test_a_score_that_cannot_be_given_is_void(name: str, said: str, reason: str) -> None:
    (outcome,) = played(task_of(name), [(0, [said])])
    assert outcome.status is EpisodeStatus.VOID
    assert outcome.reward is None
    assert reason in str(outcome.void_reason)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("sums", {"arguments": {"sise": 2}}, "sise"),
        ("in_a_sandbox", {}, "env=harbor plays tasks in containers"),
    ],
)
def test_what_cannot_be_played_is_named(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(XpError, match=said):
        load_provider(task_of(name, **options), os.environ).splits()


def words(outputs: Path, *more: str) -> list[str]:
    given = [
        f"env.target={FILE}@sums",
        "env.options.arguments={size: 40}",
        f"env.python={inspect_python()}",
    ]
    return [
        "env=inspect",
        *given,
        "env.limits.create_timeout_s=200",
        f"outputs={outputs}",
        "model=tiny",
        *more,
    ]


def test_env_check_finds_no_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check_finds_no_fault([*words(tmp_path), "--seconds", "250"], capsys)


def test_an_evaluation_of_every_sample_is_played(tmp_path: Path) -> None:
    def solve(body: Mapping[str, Any]) -> dict[str, Any]:
        number = int(body["messages"][1]["content"].split()[2])
        return {"content": str(2 * number if number < 30 else 7)}

    with serving(ChatServer(write=solve)) as server:
        endpoint = ["model=endpoint", f"model.url={server.url}", "model.name=stub"]
        chosen = [one for one in words(tmp_path) if not one.startswith("model=")]
        assert main(["eval", *chosen, *endpoint]) == 0
    (file,) = (tmp_path / "evaluations").glob("*/eval.json")
    found = json.loads(file.read_text())
    assert found["num_played"] == 40
    assert found["summary"]["reward"]["value"] == pytest.approx(30 / 40)


@pytest.mark.slow
def test_two_training_steps_on_trl_and_the_evaluations_are_played(tmp_path: Path) -> None:
    two_steps_are_played(words(tmp_path, "env.train.split=all", "env.max_turns=2"), tmp_path)
