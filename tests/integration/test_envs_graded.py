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
from tests.support.launching import is_alive
from tests.support.ors_server import rules
from tests.support.sections import member_of, replace, selection
from tests.support.waiting import wait_for
from xp.envs.base import Message, ProtocolError, ResponseLost, Task
from xp.envs.config import EnvConfig, EpisodeConfig
from xp.envs.graded import GradedProvider, SteppedSession
from xp.envs.graders import GraderHandler
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import XpError
from xp.spec.dialect import Dialect
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
        ("trl.rewards:think_format_reward", GraderForm.TRL, True),
    ],
)
def test_a_grader_of_another_framework_reads_what_that_gives_it(
    grader: str, form: GraderForm, reads_it: bool, package: Path
) -> None:
    (package / "rows.jsonl").write_text(json.dumps({"prompt": [MESSAGE]}))
    config = graded(grader, rows="lent_rows:rows.jsonl", grader_form=form)
    text = "<think>hm</think> It is 42."
    other = "It is 42."
    if form is GraderForm.TRL:
        rewards = pytest.importorskip("trl.rewards", reason="TRL is not installed (extra trl)")
        own = [
            rewards.think_format_reward([[{"role": "assistant", "content": one}]])[0]
            for one in (text, other)
        ]
        assert own == [1.0, 0.0]
        config = replace(config, grader=grader)
    assert [play(config, 0, one)[0].reward for one in (text, other)] == [float(reads_it), 0.0]


def test_an_environment_with_steps_is_a_conversation_whose_rewards_are_summed() -> None:
    outcome, said = play(graded("Higher"), 5, "3", "7", "5")
    assert [message["content"] for message in said] == ["higher", "lower"]
    assert {message["role"] for message in said} == {"user"}
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert outcome.num_turns == 3


def test_a_conversation_that_runs_out_of_turns_is_truncated() -> None:
    assert (
        play(replace(graded("Higher"), max_turns=2), 5, "3", "4")[0].status
        is EpisodeStatus.TRUNCATED
    )


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


def test_the_conversations_of_one_process_share_a_grader_and_end_alone() -> None:
    handler = GraderHandler(graded("Counts"))
    row = {"prompt": "Count."}
    assert [handler.open(number, row) for number in (1, 2)] == [
        [{"role": "user", "content": "Count."}]
    ] * 2
    assert [handler.take(number, "x").reward for number in (2, 1)] == [1.0, 2.0]
    handler.close(1, None)
    handler.close(1, None)
    with pytest.raises(KeyError):
        handler.take(1, "x")
    assert handler.take(2, "x").reward == 3.0


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
        ("equals", GraderForm.XP, {"answer": "3"}, "3", 1.0, {}),
        ("with_metrics", GraderForm.XP, {"answer": "3"}, "4", 0.5, {"acc": 0.0}),
        ("pair", GraderForm.XP, {}, "four", 0.5, {"length": 4.0}),
        ("later", GraderForm.XP, {"answer": "3"}, "3", 1.0, {}),
        ("numpy_scalar", GraderForm.XP, {"answer": "3"}, "3", 0.25, {}),
        ("torch_scalar", GraderForm.XP, {"answer": "3"}, "3", 0.25, {}),
        ("compute_score", GraderForm.VERL, VERL, "3", 1.0, {"known": 1.0}),
        (
            "compute_score",
            GraderForm.VERL,
            {"prompt": "?", "answer": "4"},
            "4",
            1.0,
            {"known": 0.0},
        ),
        ("short_score", GraderForm.VERL, VERL, "4", 0.0, {}),
        ("trl_reward", GraderForm.TRL, {"prompt": "?", "answer": "3"}, "3", 1.0, {}),
        ("trl_reward", GraderForm.TRL, {"prompt": [MESSAGE], "answer": "3"}, "4", 0.0, {}),
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
    if grader == "torch_scalar":
        pytest.importorskip("torch")
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
        ("trl_reward", GraderForm.TRL, "None as the reward"),
        ("trl_bare_number", GraderForm.TRL, "non-iterable float"),
        ("NeverScores", GraderForm.XP, "None as the reward"),
    ],
)
def test_what_is_no_reward_is_a_fault(grader: str, form: GraderForm, fault: str) -> None:
    handler = GraderHandler(graded(grader, grader_form=form))
    handler.open(1, {"prompt": "?", "answer": "3"})
    with pytest.raises((ProtocolError, TypeError), match=fault):
        handler.take(1, "")


def test_each_step_of_a_conversation_has_its_reward() -> None:
    handler = GraderHandler(graded("Higher"))
    assert [one["content"] for one in handler.open(1, {"prompt": "Say 5.", "answer": "5"})] == [
        "Guess.",
        "Say 5.",
    ]
    results = [handler.take(1, guess) for guess in ("3", "5")]
    assert [(one.text, one.reward, one.finished, one.awaits_reply) for one in results] == [
        ("higher", 0.0, False, True),
        ("", 1.0, True, False),
    ]


@pytest.mark.parametrize(
    ("grader", "words"),
    [
        ("raises", ("ToolCrashed", "graders.py")),
        ("hangs", ("DeadlineExceeded",)),
        ("never", ("DeadlineExceeded",)),
        ("forgets_to_return", ("ProtocolError", "None as the reward")),
    ],
)
def test_a_grader_that_fails_makes_the_episode_void_never_zero(
    grader: str, words: tuple[str, ...]
) -> None:
    hangs = {"call_timeout_s": 1.0} if words == ("DeadlineExceeded",) else {}
    outcome, _ = play(
        with_limits(graded(grader), **hangs, retries_per_episode=0),
        1,
        "1",
    )
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert all(word in (outcome.void_reason or "") for word in words)


def test_a_grader_that_holds_the_interpreter_costs_one_episode() -> None:
    """A regular expression that backtracks for ever: no thread of its process, and no signal handler, runs again."""
    config = with_limits(graded("backtracks"), retries_per_episode=1)
    provider = GradedProvider(config, {})
    hung, other = (
        Episode(
            Task("x", "train", index),
            lambda index=index: provider.open(Task("x", "train", index)),
            config,
        )
        for index in (1, 2)
    )
    other.start()
    provider._config = with_limits(
        config, call_timeout_s=1.0
    )  # The other one may take longer on a busy machine.
    hung.start()
    hung.step("1")
    other.step("2")
    assert "DeadlineExceeded" in (hung.settle().void_reason or "")
    assert other.settle().reward == 1.0
    provider.close()


@pytest.mark.parametrize(
    ("grader", "fault"), [("eats", "MemoryError"), ("ends", "it ended with code 3")]
)
def test_a_grader_that_eats_memory_or_exits_makes_void(grader: str, fault: str) -> None:
    config = with_limits(graded(grader), memory_gb=1.0, retries_per_episode=0)
    outcome, _ = play(config, 1, "1")
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert fault in (outcome.void_reason or "")


def test_a_grader_sees_the_secrets_that_are_declared_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JUDGE_API_KEY", "OTHER_API_KEY", "UNKNOWN_VARIABLE"):
        monkeypatch.setenv(name, "x")
    config = graded("sees", secrets={"JUDGE_API_KEY": None})
    assert play(config, 1, "JUDGE_API_KEY OTHER_API_KEY UNKNOWN_VARIABLE")[0].reward == 1.0


def test_a_closed_provider_leaves_no_grader_behind() -> None:
    provider = GradedProvider(graded("equals"), {})
    provider.open(Task("x", "train", 1)).answer("1")
    process = provider._processes._process.child()._process
    provider.close()
    assert process.wait(250) is not None


def test_a_closed_provider_leaves_no_process_that_its_grader_started() -> None:
    provider = GradedProvider(graded("starts"), {})
    started = provider.open(Task("x", "train", 1)).answer("1").reward
    assert started is not None
    assert is_alive(int(started))
    provider.close()
    assert wait_for(lambda: not is_alive(int(started)))


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
    entry = entry_of(one, "hash", *described(provider, one), member)
    assert "canary" not in f"{entry} {one!r}"


def test_a_grader_without_rows_says_where_they_may_come_from() -> None:
    with pytest.raises(XpError, match=r"env\.rows"):
        GradedProvider(graded("equals", rows=None), {}).splits()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package `lent_rows` of a user's."""
    folder = tmp_path / "lent_rows"
    folder.mkdir()
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    sys.modules.pop("lent_rows", None)


def test_the_text_of_a_tool_call_is_graded(package: Path) -> None:
    """Public sets of tool use describe the tools in the prompt, and score the text of the call."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    (package / "rows.jsonl").write_text(
        json.dumps({"prompt": "Call weather for Rome.", "answer": call})
    )
    config = rules(
        provider="local", grader="xp.envs.builtin.graders:exact", rows="lent_rows:rows.jsonl"
    )
    outcome, _ = play(config, 0, f"<think>Rome.</think>{call}")
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.0
    assert outcome.num_malformed == 0
    assert play(config, 0, call[:-20])[0].reward == 0.0


def test_rows_of_a_file_belong_to_the_split_that_they_name(package: Path) -> None:
    lines = [{"prompt": "a\u2028b", "answer": "1"}, {"prompt": "b", "answer": "2", "split": "test"}]
    (package / "rows.jsonl").write_text(
        "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n"
    )
    provider = GradedProvider(graded("equals", rows="lent_rows:rows.jsonl"), {})
    assert provider.splits() == ("train", "test")
    assert provider.tasks("test", [0])[0].spec["answer"] == "2"


def test_rows_of_a_parquet_file_are_read_as_skyrl_writes_them(package: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {
        "prompt": [{"role": "user", "content": "a"}],
        "reward_spec": {"method": "rule", "ground_truth": "1"},
    }
    pq.write_table(pa.Table.from_pylist([row]), package / "rows.parquet")
    provider = GradedProvider(graded("equals", rows="lent_rows:rows.parquet"), {})
    assert provider.tasks("train", [0])[0].spec["reward_spec"]["ground_truth"] == "1"
    assert provider.tasks("train", [0])[0].spec["answer"] == "1"


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "line 1"), ('{"answer": 1}', "none may be the prompt"), ('{"prompt": []}', "row 1")],
)
def test_a_bad_file_of_rows_is_named_with_its_place(package: Path, text: str, fault: str) -> None:
    (package / "rows.jsonl").write_text(text)
    with pytest.raises(XpError, match=fault):
        GradedProvider(graded("equals", rows="lent_rows:rows.jsonl"), {}).splits()


def test_a_file_that_is_not_there_is_named(package: Path) -> None:
    with pytest.raises(XpError, match=r"none\.jsonl"):
        GradedProvider(graded("equals", rows=f"{package.name}:none.jsonl"), {}).splits()


def test_the_version_changes_with_the_rows(package: Path) -> None:
    versions = set()
    for answer in "12":
        (package / "rows.jsonl").write_text(json.dumps({"prompt": "a", "answer": answer}))
        versions.add(GradedProvider(graded("equals", rows="lent_rows:rows.jsonl"), {}).version())
    assert len(versions) == 2


@pytest.mark.parametrize("grader", ["scaled", "Scaled"])
def test_arguments_go_to_the_function_or_to_the_class(grader: str) -> None:
    assert play(graded(grader, grader_args={"scale": 3.0}), 3, "3")[0].reward == 3.0


def test_unknown_arguments_of_a_class_are_refused_with_known_ones() -> None:
    with pytest.raises(XpError, match=r"env\.grader_args: .*'size'; .*:Scaled\(scale"):
        GradedProvider(graded("Scaled", grader_args={"size": 1}), {})


@pytest.mark.parametrize(
    "name", ["accuracy_reward", "reasoning_accuracy_reward", "think_format_reward"]
)
def test_trls_own_functions_give_their_own_rewards(name: str) -> None:
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


@pytest.mark.parametrize(
    ("rewritten", "is_refused"), [(None, False), ("go ", False), ("<act>go</act>", True)]
)
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
        ("short_score", GraderForm.XP, "grader_form=verl"),
        ("trl_reward", GraderForm.XP, "grader_form=trl"),
        ("trl_reward", GraderForm.VERL, "grader_form=trl"),
        ("Scaled", GraderForm.VERL, "grader_form=xp"),
    ],
)
def test_a_function_of_another_form_is_refused_since_it_could_score_nonsense(
    grader: str, form: GraderForm, fix: str
) -> None:
    """`short_score(answer, row)` would look for a row in the answer."""
    with pytest.raises(XpError, match=fix):
        GradedProvider(graded(grader, grader_form=form), {})


def test_a_ready_grader_refuses_rows_that_no_answer_could_equal() -> None:
    config = replace(graded("equals"), grader="xp.envs.builtin.graders:choice")
    with pytest.raises(
        XpError, match=r"row 1 of split train: its answer is '0'; expected a letter"
    ) as error:
        GradedProvider(config, {}).check_answers()
    assert "env.columns.answer=COLUMN" in str(error.value)


def test_a_mixture_has_the_dialect_of_each_member_and_the_smallest_limit() -> None:
    one = replace(with_limits(graded("equals"), max_sessions=7), dialect=Dialect.QWEN_XML)
    members = {"a": one, "b": replace(with_limits(one, max_sessions=5), dialect=Dialect.GLM)}
    with EnvironmentMixture(EpisodeConfig(members), {}) as mix:
        assert [mix.dialect(name) for name in ("a", "b", "other")] == [
            Dialect.QWEN_XML,
            Dialect.GLM,
            Dialect.QWEN_XML,
        ]
        assert mix.max_sessions() == 5
