"""`provider: verifiers` with the real package: its own rollouts of the same messages give the same rewards."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.environments.python import ROOT, Script, played, python, rewards, told
from tests.stubs.chat_server import ChatServer, serving
from tests.support.ors_server import rules
from tests.support.small_training import check_finds_no_fault, two_steps_are_played
from xp.contrib.contracts.provider import ProviderSuite, lent
from xp.envs.base import Provider
from xp.envs.config import EnvConfig, load_provider
from xp.errors import XpError

PACKAGES = ROOT / "tests/environments/packages"
OWN = (ROOT / "tests/environments/own_rollouts.py").read_text()
NONE: dict[str, Any] = {
    "environment": None,
    "config": {},
    "taskset": {},
    "seats": {},
    "seat": None,
    "num_tasks": None,
    "prices": {},
}
SUBPROCESS = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}
BOOK = "ledger_book"
USER = ["Tell me the capital of my country.", "###DONE###"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True, scope="module")
def _packages() -> Iterator[None]:
    """Variables that name the packages' Python, and uv, with which verifiers' own harness starts its programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PACKAGES))
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield


def package(target: str, max_turns: int = 6, **options: Any) -> EnvConfig:
    limits = {"create_timeout_s": 400.0, "call_timeout_s": 200.0, "episode_timeout_s": 800.0}
    return rules(
        provider="verifiers",
        target=target,
        python=python(),
        options=NONE | options,
        max_turns=max_turns,
        **limits,
    )


class TestVerifiers(ProviderSuite):
    """The contract of every provider."""

    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls) -> Iterator[Provider]:
        yield from lent(load_provider(package("xp_capitals"), os.environ))

    @pytest.fixture
    def closed(self) -> Provider:
        return load_provider(package("xp_capitals"), os.environ)


def message(number: int, turn: str | tuple[str, dict[str, Any]]) -> Mapping[str, Any]:
    """The same turn as an endpoint says it."""
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    function = {"name": turn[0], "arguments": json.dumps(turn[1])}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def own(
    config: dict[str, Any], scripts: list[tuple[int, Script]], seat: str = "agent"
) -> list[float]:
    """The rewards of verifiers' own rollouts."""
    messages = [
        [index, [message(number, turn) for number, turn in enumerate(script, 1)]]
        for index, script in scripts
    ]
    found: list[float] = told(
        OWN, {"config": config, "seat": seat, "user": USER, "scripts": messages}
    )
    return found


@pytest.mark.parametrize(
    ("target", "seat", "scripts", "expected"),
    [
        (
            "xp_capitals",
            "agent",
            [(0, ["Paris"]), (1, ["It is Rome, of course"]), (2, ["Kyoto"]), (3, [""])],
            [2.0, 1.5, 0.0],
        ),
        (
            "xp_ledger",
            "agent",
            [
                (
                    2,
                    [(BOOK, {"amount": 2}), (BOOK, {"amount": "x"}), (BOOK, {"amount": 1}), "done"],
                ),
                (4, [(BOOK, {"amount": 1}), ("ledger_balance", {}), "done"]),
                (0, [(BOOK, {"amount": -200})]),
            ],
            [1.25, 0.25, 0.25],
        ),
        (
            "xp_guess",
            "player",
            [(0, ["1", "no idea"]), (1, ["3", "9", "7"]), (2, ["1", "2", "3"])],
            [0.25],
        ),
    ],
    ids=["weighted rewards", "tools with a state", "answers to each turn"],
)
def test_turns_and_tools_agree(
    target: str, seat: str, scripts: list[tuple[int, Script]], expected: list[float]
) -> None:
    turns = 3 if seat == "player" else 6
    agent = SUBPROCESS | ({"max_turns": turns} if seat == "player" else {})
    found = rewards(package(target, max_turns=turns), scripts)
    assert found == own({"taskset": {"id": target}, seat: agent}, scripts, seat)
    assert found[: len(expected)] == expected


def test_the_packages_own_environment_with_a_simulated_user_agrees() -> None:
    scripts: list[tuple[int, Script]] = [(0, ["It is Paris"]), (0, ["Lyon"])]
    client = {
        "client": {"type": "eval", "base_url": "USER_URL", "api_key_var": "OWN_KEY"},
        "model": "user",
    }
    config = {
        "id": "user-sim",
        "taskset": {"id": "xp_capitals"},
        "assistant": SUBPROCESS,
        "user": SUBPROCESS | client,
    }
    expected = own(config, scripts, seat="assistant")

    def user(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": USER[sum(one["role"] == "assistant" for one in body["messages"])]}

    with serving(ChatServer(write=user)) as server:
        seats = {
            "user": {"model": "user", "client": {"base_url": server.url, "api_key_var": "OWN_KEY"}}
        }
        assert (
            rewards(package("xp_capitals", environment="user-sim", seats=seats), scripts)
            == expected
        )
    assert expected == [2.0, 0.0]


def test_a_judge_is_an_endpoint_whose_key_is_named_by_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "of-the-judge")

    def judge(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": "yes" if "It is Paris" in str(body["messages"]) else "no"}

    with serving(ChatServer(write=judge)) as server:
        entry = {
            "id": "reference",
            "weight": 4.0,
            "base_url": server.url,
            "api_key_var": "JUDGE_KEY",
            "model": "judge",
        }
        taskset = {"task": {"judges": [{**entry, "answer_field": "answer"}]}}
        config = package("xp_capitals", taskset=taskset, prices={"judge": (2.0, 8.0)})
        config = EnvConfig(**{**vars(config), "secrets": {"JUDGE_KEY": None}})
        (outcome,) = played(config, [(0, ["It is Paris"])])
        (asked,) = server.requests
        assert "Bearer of-the-judge" in str(server.headers)
    assert outcome.reward == 6.0
    assert asked["model"] == "judge"
    used = outcome.judges
    assert used["prompt_tokens"] > 0
    assert used["cost_usd"] == pytest.approx(
        (2 * used["prompt_tokens"] + 8 * used["completion_tokens"]) / 1e6
    )


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("xp_capitals", {"taskset": {"continents": "x"}}, "continents"),
        ("xp_capitals", {"environment": "user-sim"}, "options.seat"),
    ],
)
def test_what_the_package_does_not_have_is_named(
    target: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(XpError, match=said):
        load_provider(package(target, **options), os.environ).splits()


def words(outputs: Path, *more: str) -> list[str]:
    slow = ["env.limits.create_timeout_s=400", f"env.python={python()}"]
    return [
        "env=verifiers",
        "env.target=xp_guess",
        *slow,
        f"outputs={outputs}",
        "model=tiny",
        *more,
    ]


def test_env_check_finds_no_fault(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    check_finds_no_fault([*words(tmp_path), "--seconds", "500"], capsys)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_training_steps_on_trl_and_the_evaluations_are_played(tmp_path: Path) -> None:
    two_steps_are_played(words(tmp_path, "env.max_turns=2"), tmp_path)
