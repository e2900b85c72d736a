"""Tasks that are rows, scored by a Python function."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_session import with_limits
from tests.support.graded_rules import graded
from tests.support.sections import member_of, replace, selection
from tests.support.waiting import wait_for
from xp.envs.base import Message, ProtocolError, ResponseLost, Task
from xp.envs.config import EnvConfig
from xp.envs.graded import GradedProvider, SteppedSession
from xp.envs.graders import GraderHandler
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import XpError
from xp.spec.env import GraderForm
from xp.tasks.questions import described, entry_of


def play(config: EnvConfig, index: int, *turns: str) -> tuple[EpisodeResult, list[Message]]:
    provider = GradedProvider(config, {})
    episode = Episode(
        Task("x", "train", index), lambda: provider.open(Task("x", "train", index)), config
    )
    said = [message for text in turns for message in episode.step(text).messages]
    return episode.settle(), said


def test_a_function_scores_the_final_message() -> None:
    outcome, said = play(graded("equals"), 3, "<think>3? 4?</think> 3")
    assert said == []  # a judge would read them as the user's
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert play(graded("equals"), 3, "4")[0].reward == 0.0


@pytest.mark.parametrize(
    ("grader", "form", "reads_it"),
    [
        ("thinks", GraderForm.XP, False),
        ("thinks_for_verl", GraderForm.VERL, True),
        ("ThinksInSteps", GraderForm.XP, True),
    ],
)
def test_a_grader_of_another_framework_reads_what_that_gives_it(
    grader: str, form: GraderForm, reads_it: bool, package: Path
) -> None:
    (package / "rows.jsonl").write_text(json.dumps({"prompt": [MESSAGE]}))
    config = graded(grader, rows="lent_rows:rows.jsonl", grader_form=form)
    texts = ("<think>hm</think> It is 42.", "It is 42.")
    assert [play(config, 0, text)[0].reward for text in texts] == [float(reads_it), 0.0]


def test_an_environment_with_steps_is_a_conversation_whose_rewards_are_summed() -> None:
    outcome, said = play(graded("Higher"), 5, "3", "7", "5")
    assert [message["content"] for message in said] == ["higher", "lower"]
    assert {message["role"] for message in said} == {"user"}
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert outcome.num_turns == 3


def test_a_conversation_whose_process_ended_is_lost_alone() -> None:
    config = graded("Higher")
    provider = GradedProvider(config, {})
    session, other = (provider.open(Task("x", "train", 5)) for _ in range(2))
    assert isinstance(session, SteppedSession)
    assert isinstance(other, SteppedSession)
    session.answer("3")
    os.kill(session._worker.number, signal.SIGKILL)
    with pytest.raises(ResponseLost, match="SIGKILL ended it"):
        session.answer("5")
    session.close()
    assert [other.answer(text).reward for text in ("3", "5")] == [0.0, 1.0]
    other.close()
    os.kill(other._worker.number, signal.SIGKILL)  # It is free now.
    assert wait_for(lambda: not other._worker.is_ready())
    assert provider.open(Task("x", "train", 5)).answer("5").reward == 1.0
    provider.close()


MESSAGE = {"role": "user", "content": "?"}
VERL = {
    "prompt": "?",
    "data_source": "sums",
    "reward_model": {"ground_truth": "3"},
    "extra_info": {},
}


@pytest.mark.parametrize(
    ("grader", "form", "row", "answer", "reward", "metrics"),
    [
        ("with_metrics", GraderForm.XP, {"answer": "3"}, "4", 0.5, {"acc": 0.0}),
        ("pair", GraderForm.XP, {}, "four", 0.5, {"length": 4.0}),
        ("later", GraderForm.XP, {"answer": "3"}, "3", 1.0, {}),
        ("numpy_scalar", GraderForm.XP, {"answer": "3"}, "3", 0.25, {}),
        ("compute_score", GraderForm.VERL, VERL, "3", 1.0, {"known": 1.0}),
        ("trl_reward", GraderForm.TRL, {"prompt": "?", "answer": "3"}, "3", 1.0, {}),
    ],
)
def test_an_answer_is_graded_in_each_form(
    grader: str,
    form: GraderForm,
    row: dict[str, object],
    answer: str,
    reward: float,
    metrics: dict[str, float],
) -> None:
    handler = GraderHandler(graded(grader, grader_form=form))
    assert handler.open(1, {"prompt": [MESSAGE]} | row) == [MESSAGE]
    result = handler.take(1, answer)
    assert type(result.reward) is float
    assert (result.text, result.reward, result.finished, result.metrics) == (
        "",
        reward,
        True,
        metrics,
    )


@pytest.mark.parametrize(
    ("grader", "form", "fault"),
    [
        ("says_nothing_by_a_mapping", GraderForm.XP, "no score and no reward, only acc"),
        ("forgets_to_return", GraderForm.XP, "None as the reward"),
        ("says_a_text", GraderForm.XP, "the grader's reward is '1', not a number"),
        ("trl_bare_number", GraderForm.TRL, "non-iterable float"),
    ],
)
def test_what_is_no_reward_is_a_fault(grader: str, form: GraderForm, fault: str) -> None:
    handler = GraderHandler(graded(grader, grader_form=form))
    handler.open(1, {"prompt": "?", "answer": "3"})
    with pytest.raises((ProtocolError, TypeError), match=fault):
        handler.take(1, "")


def test_a_grader_that_fails_makes_the_episode_void_never_zero() -> None:
    grader = "raises"
    words = ("ToolCrashed", "graders.py")
    outcome, _ = play(with_limits(graded(grader), retries_per_episode=0), 1, "1")
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert all(word in (outcome.void_reason or "") for word in words)


def test_a_grader_sees_the_secrets_that_are_declared_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JUDGE_API_KEY", "OTHER_API_KEY", "UNKNOWN_VARIABLE"):
        monkeypatch.setenv(name, "x")
    config = graded("sees", secrets={"JUDGE_API_KEY": None})
    assert play(config, 1, "JUDGE_API_KEY OTHER_API_KEY UNKNOWN_VARIABLE")[0].reward == 1.0


def test_a_rows_other_columns_reach_neither_task_nor_repr(package: Path) -> None:
    row = {
        "prompt": "a",
        "answer": "canary-1",
        "reward_spec": {"ground_truth": "canary-2"},
        "note": "canary-3",
    }
    (package / "rows.jsonl").write_text(json.dumps(row))
    config = graded("equals", rows="lent_rows:rows.jsonl")
    provider = GradedProvider(config, {})
    one = provider.tasks("train", [0])[0]
    member = member_of(replace(config, system_prompt="Think. {tools}"), selection())
    entry = entry_of("hash", *described(provider, one), member)
    assert "canary" not in f"{entry} {one!r}"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package `lent_rows` of a user's."""
    folder = tmp_path / "lent_rows"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("lent_rows", None)


@pytest.mark.parametrize("grader", ["scaled", "Scaled"])
def test_arguments_go_to_the_function_or_to_the_class(grader: str) -> None:
    assert play(graded(grader, grader_args={"scale": 3.0}), 3, "3")[0].reward == 3.0


def test_trls_own_functions_give_their_own_rewards() -> None:
    name = "accuracy_reward"
    own = getattr(
        pytest.importorskip("trl.rewards", reason="TRL is not installed (extra trl)"), name
    )
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra math)")
    texts = [
        r"\boxed{\frac{1}{3}}",
        r"<think>A half?</think>So \boxed{\frac{1}{3}}",
        r"<think>\boxed{1}",
        "1/3",
        "",
    ]
    row = {"prompt": [MESSAGE], "solution": r"$\frac{1}{3}$"}
    handler = GraderHandler(
        replace(graded("equals", grader_form=GraderForm.TRL), grader=f"trl.rewards:{name}")
    )
    rewards = []
    for number, text in enumerate(texts):
        handler.open(number, row)
        rewards.append(handler.take(number, text).reward)
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert rewards == own(completions=completions, solution=[row["solution"]] * len(texts))
    assert len(set(rewards)) == 2


@pytest.mark.parametrize(("rewritten", "is_refused"), [("go ", False), ("<act>go</act>", True)])
def test_a_message_that_the_environment_rewrites_is_refused(
    rewritten: str | None, is_refused: bool
) -> None:
    handler = GraderHandler(graded("Rewriter", grader_args={"rewritten": rewritten}, max_turns=7))
    handler.open(1, {"prompt": "?"})
    if not is_refused:
        assert handler.take(1, "go").reward == 7.0
        return
    with pytest.raises(ProtocolError, match="postprocessed_action='<act>go</act>'"):
        handler.take(1, "go")


@pytest.mark.parametrize(
    ("grader", "form", "fix"),
    [
        ("compute_score", GraderForm.XP, "grader_form=verl"),
        ("trl_reward", GraderForm.VERL, "grader_form=trl"),
    ],
)
def test_a_function_of_another_form_is_refused_since_it_could_score_nonsense(
    grader: str, form: GraderForm, fix: str
) -> None:
    """`short_score(answer, row)` would look for a row in the answer."""
    with pytest.raises(XpError, match=fix):
        GradedProvider(graded(grader, grader_form=form), {})
