"""Counts, limits, sums and tables of an evaluation, from records alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.evaluations import record_of
from tests.support.fake_session import RULES, TASK, FakeSession, Sessions, call, steady
from tests.support.sections import replace, run_spec
from tests.support.task_rows import row
from xp.composition import compose
from xp.envs.chat_answers import Answer
from xp.envs.chat_api import DialogueFails, TooLong
from xp.envs.config import EpisodeConfig
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.errors import XpError
from xp.planning.episode import episode_config
from xp.results.evaluation.driver import Allowance
from xp.results.evaluation.evaluate import EvaluationRun, rules_of
from xp.results.evaluation.files import inspect_log, write_parquet
from xp.results.evaluation.logged import _means
from xp.results.evaluation.play import Dialogue, Usage, play_dialogue
from xp.results.evaluation.records import EvaluationIdentity
from xp.results.evaluation.settings import ToolCalls
from xp.results.evaluation.summary import summary_of, usage, with_intervals
from xp.results.evaluation.tables import latex, notes, rows
from xp.results.evaluation.tracked import metrics_of
from xp.spec.dialect import Dialect
from xp.spec.env import ToolCallsPerTurn


def answer(prompt: int | None, written: int | None, text: str = call("move")) -> Answer:
    return Answer(
        {"content": text},
        is_cut=False,
        prompt_tokens=prompt,
        completion_tokens=written,
    )


def test_usage_counts_what_is_billed_and_what_the_environment_added() -> None:
    used = Usage()
    for prompt, written in ((10, 5), (18, 7), (30, 2)):
        used.add(answer(prompt, written))
    assert used.on_record() == {"requests": 3, "prompt_tokens": 58, "completion_tokens": 14}
    tokens = used.tokens()
    assert tokens is not None
    # The last prompt holds the first one and the twelve tokens that were generated before it.
    assert tokens.prompt == 10
    assert tokens.generated == 14
    assert tokens.observed == 30 - 10 - 12
    for prompt, completion in ((None, 3), (3, None)):
        used = Usage()
        used.add(answer(1, 1))
        used.add(answer(prompt, completion))
        assert used.on_record() == {"requests": 2}
        assert used.tokens() is None


@pytest.mark.parametrize(
    ("fault", "turns", "status", "reward"),
    [
        (TooLong("9 tokens"), 0, EpisodeStatus.VOID, None),
        (TooLong("9 tokens"), 2, EpisodeStatus.TRUNCATED, 1.0),
        (DialogueFails("filtered"), 2, EpisodeStatus.VOID, None),
    ],
)
def test_a_dialogue_that_ends_early_is_truncated_or_void(
    fault: Exception, turns: int, status: EpisodeStatus, reward: float | None
) -> None:
    script = [answer(1, 1)] * turns

    def ask(_: Dialogue) -> Answer:
        if not script:
            raise fault
        return script.pop()

    episode = Episode(TASK, Sessions(FakeSession(steady)), RULES)
    used = play_dialogue(ask, Dialogue(row([]), RULES, ToolCalls.TEXT), episode)
    outcome = episode.settle()
    assert (outcome.status, outcome.reward, used.requests) == (status, reward, turns)


def test_a_limit_is_reached_by_cost_or_by_tokens() -> None:
    spent = Allowance(budget_usd=0.5, max_tokens=3_000_000)
    spent.spend({"prompt_tokens": 200_000, "completion_tokens": 100_000}, 1.0, 2.0)
    assert (spent.cost_usd, spent.tokens, spent.spent()) == (pytest.approx(0.4), 300_000, None)
    spent.spend({"prompt_tokens": 100_000, "completion_tokens": 0}, 1.0, 2.0)
    assert spent.spent() == "--budget-usd 0.5 is spent (0.5000)"
    free = Allowance(max_tokens=1000)
    free.spend({"prompt_tokens": 999, "completion_tokens": 0}, 1.0, None)
    assert (free.cost_usd, free.spent()) == (0.0, None)
    free.spend({"prompt_tokens": 0, "completion_tokens": 1}, None, 1.0)
    assert free.spent() == "--max-tokens-total 1,000 is reached (1,000)"
    with pytest.raises(XpError, match="reports no token usage"):
        Allowance(max_tokens=1).spend(
            {"requests": 1, "prompt_tokens": 3},
            None,
            None,
        )


def record(
    prompt: int | None, judges: Mapping[str, float], env: str = "e", status: str = "finished"
) -> dict[str, Any]:
    tokens = None if prompt is None else {"prompt": prompt, "generated": 10 * prompt, "observed": 0}
    counts = {} if prompt is None else {"prompt_tokens": prompt, "completion_tokens": 10 * prompt}
    outcome = {
        "status": status,
        "num_turns": 2,
        "num_tool_calls": 1,
        "num_malformed": 0,
        "void_reason": None,
        "step_rewards": [],
    }
    extra = {"usage": {"requests": 1, **counts}}
    return {
        "env": env,
        "outcome": {**outcome, "judges": judges},
        "tokens": tokens,
        "elapsed_s": 3.0,
        "extra": extra,
    }


def test_tokens_and_judges_are_summed_where_all_are_known() -> None:
    judged = [
        record(5, {"prompt_tokens": 3.0, "cost_usd": 0.5}),
        record(7, {"prompt_tokens": 4.0}),
        record(1, {}),
    ]
    assert usage(judged, (2.0, 3.0)) == {
        "prompt_tokens": 13,
        "completion_tokens": 130,
        "cost_usd": pytest.approx((13 * 2 + 130 * 3) / 1e6),
    }
    assert [usage(judged, one)["cost_usd"] for one in ((None, 3.0), (2.0, None))] == [None, None]
    unknown = dict.fromkeys(("prompt_tokens", "completion_tokens", "cost_usd"))
    assert usage([*judged, record(None, {})], (2.0, 3.0)) == usage([], (2.0, 3.0)) == unknown


def test_an_evaluation_of_one_environment_has_its_figures_and_of_several_those_of_the_mix() -> None:
    def summary(names: list[str], num_played: int) -> dict[str, Any]:
        tasks = [
            replace(row([]), task_id=f"{name}/t/{index}", env=name)
            for index in (0, 1)
            for name in names
        ]
        records = {
            (task.task_id, 0): record(1, {}, task.env)
            | {"split": "t", "index": task.task_id[-1], "started_at": 10.0 + number}
            for number, task in enumerate(tasks[:num_played])
        }
        for number, one in enumerate(records.values()):
            one["outcome"]["reward"] = float(number % 2)
        requested = EvaluationIdentity(
            "e", {"name": "m"}, None, "tasks", "rules", {"pass_threshold": 1.0}
        )
        spec = compose([f"env=[{','.join(names)}]"])
        episodes = [(task, 0) for task in tasks]
        return summary_of(
            requested,
            spec,
            episodes,
            records,
            "spent",
            (1.0, 2.0),
            "e-m",
        )

    alone = summary(["multiply"], 2)
    several = summary(["multiply", "sums"], 4)
    cut = summary(["multiply"], 1)
    assert alone["summary"] == alone["environments"]["multiply"]
    assert [one["num_episodes"] for one in several["environments"].values()] == [2, 2]
    assert (alone["status"], alone["stopped"]) == ("finished", None)
    assert (cut["status"], cut["stopped"], cut["num_played"]) == ("stopped", "spent", 1)
    assert alone["tasks"]["multiply/t/1"] == {"hash": "hash", "rewards": [1.0]}


def test_a_sample_of_inspects_log_has_the_episodes_messages_and_its_last_answer() -> None:
    function = {"name": "look", "arguments": {"at": "hall"}}
    said = [
        {"role": "user", "content": "Where?"},
        {
            "role": "assistant",
            "content": "Dust.",
            "tool_calls": [{"id": "c1", "function": function}],
        },
        {"role": "tool", "content": "None.", "name": "look", "tool_call_id": "c1"},
        {"role": "assistant", "content": "Hall."},
    ]
    played = record(5, {}) | {
        "split": "t",
        "index": 3,
        "sample": 1,
        "messages": said,
        "started_at": 60.0,
    }
    played["outcome"] |= {"reward": 0.5, "step_rewards": [0.5]}
    void = played | {"outcome": played["outcome"] | {"reward": None, "void_reason": "lost"}}
    times = {"started": 0.0, "ended": 90.0, "id": "i", "run": None, "xp": "1"}
    log = json.loads(inspect_log(mixed() | times, [played, void]))
    sample, other = log["samples"]
    call = {"function": "look", "id": "c1", "type": "function", "arguments": {"at": "hall"}}
    assert sample["messages"][1] == {"role": "assistant", "content": "Dust.", "tool_calls": [call]}
    assert (sample["id"], sample["epoch"]) == ("e/t/3", 2)
    assert sample["output"]["choices"] == [{"message": sample["messages"][3]}]
    assert sample["scores"]["reward"]["value"] == 0.5
    assert other["error"]["message"] == "lost"
    assert "scores" not in other


def mixed() -> dict[str, Any]:
    """Results of two environments: two tasks of two episodes, and three tasks of one, of which one is void."""
    rewards: dict[str, list[float | None]] = {"a/t/0": [1.0, 1.0], "a/t/1": [0.0, 0.5]}
    rewards |= {"b/t/0": [0.0], "b/t/1": [0.25], "b/t/2": [None]}
    rules = {"a": {}, "b": {"env.reward.minimum": 0.0, "env.reward.maximum": 1.0}}
    used = {"prompt_tokens": 1200, "completion_tokens": 30, "cost_usd": 0.00125}
    judges = {"prompt_tokens": 5000.0, "completion_tokens": 7.0, "cost_usd": 0.5}
    stopped = {
        "env": "mix",
        "model": {"name": "m_1"},
        "status": "stopped",
        "stopped": "the budget is spent",
    }
    more = {**stopped, "num_played": 6, "usage": {**used, "judges": judges}}
    return with_intervals(
        record_of(rewards, scoring=rules, threshold=0.5, **more), are_counted=True
    )


def test_a_mix_weighs_its_environments_by_their_scored_episodes() -> None:
    whole = mixed()["summary"]
    assert whole["reward"]["value"] == pytest.approx((2.5 + 0.25) / 6)
    assert whole["passes"]["value"] == pytest.approx(3 / 6)
    assert whole["avg_at_k"]["value"] == pytest.approx((1.0 + 0.25 + 0.0 + 0.25) / 4)
    assert whole["num_tasks"] == 5
    assert whole["num_episodes"] == 7
    assert whole["num_void"] == 1
    assert whole["void_bounds"] == {
        "low": pytest.approx(2.75 / 7),
        "high": pytest.approx(3.75 / 7),
        "of": "observed",
    }
    assert (whole["bootstrap"], whole["bootstrap_differs"]) == (None, False)


def test_a_table_has_a_line_for_each_environment_and_the_mix() -> None:
    found = mixed()
    assert rows([found]) == [
        ("a", "m_1", "4", "0.625", "0.000 to 1.000", "75.0%", "0"),
        ("b", "m_1", "3", "0.125", "0.000 to 1.000", "0.0%", "1"),
        ("mix (all)", "m_1", "7", "0.458", "0.000 to 1.000", "50.0%", "1"),
    ]
    assert r"a & m\_1 & 4 & 0.625 & 0.000 to 1.000 & 75.0\% & 0 \\" in latex([found])
    assert list(notes(found)) == [
        "mix / m_1: 6 of 7 episodes: the budget is spent",
        "a: one of k passes (pass@k)  1: 75%, 2: 100%",
        "a: all of k pass (pass^k)    1: 75%, 2: 50%",
        "a: resampling tasks gives another interval of the reward: 0.250 to 1.000",
        "b: resampling tasks gives another interval of the reward: 0.000 to 0.250",
        "b: 1 void; with their rewards the mean would be between 0.083 and 0.417, by the limits of its rule and grader",
        "mix / m_1: 1,200 tokens read and 30 written for 0.0013 US dollars",
        "mix / m_1: judges: 5,000 tokens read and 7 written for 0.5000 US dollars",
    ]


def test_an_evaluations_metrics_are_numbers_of_each_environment_and_of_all() -> None:
    metrics = metrics_of(mixed())
    assert metrics["eval/a/reward"] == 0.625
    assert metrics["eval/all/num_void"] == 1.0
    assert metrics["eval/all/judges/cost_usd"] == 0.5
    assert metrics["eval/all/cost_usd"] == 0.00125


@pytest.mark.parametrize(
    ("own", "has_model", "expected"),
    [
        (Dialect.AUTO, True, Dialect.GLM),
        (Dialect.PYTHONIC, True, Dialect.PYTHONIC),
        (Dialect.PYTHONIC, False, Dialect.HERMES),
        (Dialect.ACTION, False, Dialect.ACTION),
        (Dialect.ACTION, True, Dialect.ACTION),
    ],
)
def test_the_dialect_is_the_models_or_what_xp_writes_for_an_endpoint(
    own: Dialect, has_model: bool, expected: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EpisodeConfig({"e": replace(RULES, dialect=own)})
    monkeypatch.setattr("xp.results.evaluation.evaluate.episode_config", lambda _: config)
    run = EvaluationRun.__new__(EvaluationRun)
    run.entry = SimpleNamespace(spec=None)  # type: ignore[assignment]
    monkeypatch.setattr("xp.results.evaluation.evaluate.detect", lambda *_: Dialect.GLM)
    chat = SimpleNamespace(tokenizer=None, arguments={})
    model: Any = SimpleNamespace(chat=chat) if has_model else None
    assert run._rules(model).members["e"].dialect is expected


@pytest.mark.parametrize(
    ("scores_groups", "order"), [(True, "a0 a1 b0 b1"), (False, "a0 b0 a1 b1")]
)
def test_episodes_that_are_scored_together_are_played_together(
    scores_groups: bool, order: str
) -> None:
    run = EvaluationRun.__new__(EvaluationRun)
    run._rows = [replace(row([]), task_id=name) for name in "ab"]
    env = SimpleNamespace(scores_groups=scores_groups)
    rule = run_spec(evaluation__samples_per_task=2).evaluation
    run.entry = SimpleNamespace(spec=SimpleNamespace(evaluation=rule, env=env))  # type: ignore[assignment]
    assert " ".join(f"{task.task_id}{sample}" for task, sample in run._todo(None)) == order


def test_the_table_of_an_evaluation_has_a_row_for_each_episode(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    played = [record(5, {}) | {"split": "t", "index": 3, "sample": 1} for _ in range(2)]
    for one, reward in zip(played, (0.5, None), strict=True):
        one["outcome"]["reward"] = reward
    write_parquet(tmp_path / "episodes.parquet", mixed() | {"id": "i"}, played)
    table = pq.read_table(tmp_path / "episodes.parquet").to_pylist()
    assert [(one["reward"], one["passed"], one["prompt_tokens"]) for one in table] == [
        (0.5, True, 5),
        (None, None, 5),
    ]


def test_calls_of_an_api_have_an_id_each_and_what_is_no_call_is_none() -> None:
    rules = replace(RULES, tool_calls_per_turn=ToolCallsPerTurn.ALL)
    function = {"name": "look", "arguments": "{}"}
    listed = [{"id": name, "function": function} for name in ("", None, "c7")]
    dialogue = Dialogue(row([]), rules, ToolCalls.NATIVE)
    names = [
        call["id"]
        for call in dialogue._calls({"tool_calls": [*listed, {"function": {"name": 3}}, "x"]})
    ]
    assert names[2] == "c7"
    assert len({*filter(None, names)}) == 3


def test_tasks_whose_rollouts_have_no_reward_have_no_logged_rate() -> None:
    rewards = {"min_reward": 0.0, "avg_reward": 0.5, "max_reward": 1.0}
    tasks = [
        {"task_index": 0, "num_rollouts": 4, **rewards},
        {"task_index": 1, "num_rollouts": 2, **rewards, "avg_reward": None},
    ]
    member = SimpleNamespace(target="Org/Name")
    assert _means(
        {"tasks": tasks},
        "x",
        member,
    ) == {0: (0.5, 4)}  # type: ignore[arg-type]


def test_an_evaluation_by_another_rule_is_another_one_and_the_number_of_its_tasks_is_no_rule() -> (
    None
):
    def rules(*words: str) -> Mapping[str, Any]:
        (member,) = episode_config(compose(["env=multiply", *words])).members.values()
        return rules_of(member)

    assert rules() == rules("env.held_out.num_tasks=3", "env.train.num_tasks=9")
    for other in ("env.reward_fn=[math:fsum]", "env.grader_args={a: 1}", "env.max_turns=7"):
        assert rules(other) != rules()
