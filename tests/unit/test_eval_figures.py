"""Counts, limits, sums and tables of an evaluation, from records alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.evaluations import record_of
from tests.support.fake_session import RULES, TASK, FakeSession, Sessions, call, steady
from tests.support.sections import replace
from tests.support.task_rows import row
from xp.composition import compose
from xp.envs.base import Task
from xp.envs.chat_api import Answer, DialogueFails, TooLong
from xp.envs.config import EpisodeConfig
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.errors import XpError
from xp.results.evaluation.driver import Allowance, EvaluationStage, Health, play_local
from xp.results.evaluation.entries import Entry
from xp.results.evaluation.evaluate import EvaluationRun
from xp.results.evaluation.files import inspect_log
from xp.results.evaluation.play import Dialogue, Usage, play_dialogue
from xp.results.evaluation.records import EvaluationIdentity
from xp.results.evaluation.settings import ToolCalls, settings
from xp.results.evaluation.summary import summary_of, usage, with_intervals
from xp.results.evaluation.tables import latex, markdown, notes, rows
from xp.results.evaluation.tracked import metrics_of
from xp.spec.dialect import Dialect


def answer(prompt: int | None, written: int | None, text: str = call("move")) -> Answer:
    return Answer({"content": text}, is_cut=False, prompt_tokens=prompt, completion_tokens=written)


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
    ("fault", "after", "status", "reward"),
    [
        (TooLong("9 tokens"), 0, EpisodeStatus.VOID, None),
        (TooLong("9 tokens"), 2, EpisodeStatus.TRUNCATED, 1.0),
        (DialogueFails("filtered"), 0, EpisodeStatus.VOID, None),
        (DialogueFails("filtered"), 2, EpisodeStatus.VOID, None),
    ],
)
def test_a_dialogue_that_ends_early_is_truncated_or_void(
    fault: Exception, after: int, status: EpisodeStatus, reward: float | None
) -> None:
    script = [answer(1, 1)] * after

    def ask(_: Dialogue) -> Answer:
        if not script:
            raise fault
        return script.pop()

    episode = Episode(TASK, Sessions(FakeSession(steady)), RULES)
    used = play_dialogue(ask, Dialogue(row([]), RULES, ToolCalls.TEXT), episode)
    assert episode.settle().status == status
    assert episode.settle().reward == reward
    assert used.requests == after
    is_void = status is EpisodeStatus.VOID
    assert (
        str(fault) in str(episode.settle().void_reason)
        if is_void
        else episode.settle().void_reason is None
    )


def test_a_limit_is_reached_by_cost_or_by_tokens() -> None:
    spent = Allowance(budget_usd=0.5, max_tokens=3_000_000)
    spent.spend({"prompt_tokens": 200_000, "completion_tokens": 100_000}, 1.0, 2.0)
    assert (spent.cost_usd, spent.tokens, spent.spent()) == (pytest.approx(0.4), 300_000, None)
    spent.spend({"requests": 0, "judge_cost_usd": 0.0}, 1.0, 2.0)
    spent.spend({"prompt_tokens": 100_000, "completion_tokens": 0}, 1.0, 2.0)
    assert spent.spent() == "--budget-usd 0.5 is spent (0.5000)"
    free = Allowance(max_tokens=1000)
    free.spend({"prompt_tokens": 999, "completion_tokens": 0}, 1.0, None)
    assert free.cost_usd == 0.0
    assert free.spent() is None
    free.spend({"prompt_tokens": 0, "completion_tokens": 1}, None, 1.0)
    assert free.spent() == "--max-tokens-total 1,000 is reached (1,000)"
    for limit in (Allowance(budget_usd=1.0), Allowance(max_tokens=1)):
        with pytest.raises(XpError, match="counts no tokens"):
            limit.spend({"requests": 1, "prompt_tokens": 3}, None, None)
    Allowance().spend({}, None, None)


def test_void_episodes_stop_an_evaluation_where_no_other_result_can_save_it() -> None:
    health = Health(0.25, 8)
    void, scored = (
        SimpleNamespace(status=one) for one in (EpisodeStatus.VOID, EpisodeStatus.FINISHED)
    )
    outcomes: list[Any] = [void, scored, void, scored, scored, void]
    told = [health.ended(one) for one in outcomes]
    assert told[:5] == [None] * 5
    assert told[5] == "3 episodes are void, more than training.max_void_fraction=0.25 of all"


def test_a_finished_episode_is_recorded_shown_and_counted() -> None:
    seen: list[Any] = []
    board = SimpleNamespace(ended=seen.append)
    writer = SimpleNamespace(write=seen.append)
    void: Any = SimpleNamespace(outcome=SimpleNamespace(status=EpisodeStatus.VOID))
    parts: Any = {
        "mix": None,
        "rules": None,
        "writer": writer,
        "board": board,
        "done": frozenset(),
    }
    stage = EvaluationStage("r", health=Health(0.5, 1), **parts)
    assert (
        stage.take(void) == "1 episodes are void, more than training.max_void_fraction=0.5 of all"
    )
    assert seen == [void, void.outcome]


@pytest.mark.parametrize(
    ("size", "scores", "settled"),
    # Episodes of two tasks end in this order; a2 is on record already.
    [
        (1, True, [["b1"], ["a2"], ["b2"], ["a1"]]),
        (2, False, [["b1"], [], ["b2"], ["a1"]]),
        (2, True, [[], [], ["b1", "b2"], ["a1"]]),
        (3, True, [[], [], [], []]),
    ],
)
def test_a_group_is_settled_when_all_of_it_has_ended(
    size: int, scores: bool, settled: list[list[str]]
) -> None:
    scored: list[list[str]] = []

    def score_group(episodes: Any) -> Any:
        scored.append([one.name for one in episodes])
        return SimpleNamespace(result=lambda: None)

    mix: Any = SimpleNamespace(
        scores_groups=lambda env: scores and env == "e", score_group=score_group
    )
    parts: Any = {
        "rules": None,
        "writer": None,
        "board": None,
        "health": None,
        "done": frozenset(),
    }
    recorded = frozenset() if size == 1 else frozenset({("e/t/a", 2)})
    stage = EvaluationStage("r", mix=mix, recorded=recorded, group_size=size, **parts)

    def ended(name: str) -> Any:
        task = SimpleNamespace(env="e", id=f"e/t/{name[0]}")
        return SimpleNamespace(
            episode=SimpleNamespace(name=name, task=task), sample=int(name[1]), record=lambda: name
        )

    assert [stage.settled(ended(name)) for name in ("b1", "a2", "b2", "a1")] == settled
    assert scored == ([["b1", "b2"], ["a1", "a2"]] if (size, scores) == (2, True) else [])


def test_only_missing_episodes_are_played_and_none_begins_after_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []
    taken = []
    reasons = iter([None, "spent", None])
    todo: list[Any] = [
        (SimpleNamespace(task_id=f"e/test/{index}"), sample)
        for sample in (0, 1)
        for index in range(4)
    ]

    class Played:
        """Has two episodes in play, of which the later one ends first."""

        def __init__(
            self, _: Any, __: Any, left: Any, ___: Any, *, places: int, in_order: bool
        ) -> None:
            assert (places, in_order) == (2, False)
            self.left = list(left)
            self.is_stopped = False

        def begin_no_more(self) -> None:
            self.is_stopped = True

        def __iter__(self) -> Iterator[Any]:
            while self.left and not self.is_stopped:
                pair, self.left = self.left[:2], self.left[2:]
                begun.extend((one.task_id, sample) for one, sample in pair)
                for one, sample in reversed(pair):
                    yield SimpleNamespace(record=played_one(one.task_id, sample))

    def played_one(task_id: str, sample: int) -> Any:
        episode = SimpleNamespace(task=Task("e", "test", int(task_id[-1])))
        outcome = SimpleNamespace(judges={}, status=EpisodeStatus.FINISHED)
        record = SimpleNamespace(
            index=task_id[-1], sample=sample, outcome=outcome, tokens=None, extra={}
        )
        return SimpleNamespace(episode=episode, sample=sample, trajectory=lambda *_: record)

    done = frozenset({("e/test/0", 0), ("e/test/1", 0), ("e/test/2", 0)})
    board = SimpleNamespace(ended=lambda _: None)
    writer = SimpleNamespace(write=lambda one: taken.append((one.index, one.sample)))
    parts: Any = {
        "mix": None,
        "rules": None,
        "writer": writer,
        "board": board,
        "done": done,
        "recorded": done,
    }
    stage = EvaluationStage("r", health=Health(0.5, 1), **parts)
    monkeypatch.setattr("xp.results.evaluation.driver.EpisodePlay", Played)
    model: Any = SimpleNamespace(open_engine=None, chat=None)
    assert play_local(stage, model, todo, 2, lambda _: next(reasons, None)) == "spent"
    assert begun == [("e/test/3", 0), ("e/test/0", 1)]
    assert taken == [("0", 1), ("3", 0)]
    assert play_local(stage, model, todo[:2], 2, lambda _: "spent") is None


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


def test_an_evaluation_is_another_one_where_it_is_played_otherwise() -> None:
    run = EvaluationRun.__new__(EvaluationRun)
    common = {"tasks", "num_tasks", "samples_per_task", "temperature", "pass_threshold", "seed"}
    limits = {
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "max_prompt_tokens",
        "max_tokens_per_turn",
        "max_response_tokens",
        "stop",
    }
    for directory, engine, more in (
        (None, "transformers", {"tools", "max_tokens"}),
        (
            "model",
            "transformers",
            limits | {"dtype", "chat_template", "template", "tools_prompt", "images"},
        ),
        (
            "model",
            "vllm",
            limits | {"dtype", "chat_template", "template", "tools_prompt", "images", "engine"},
        ),
    ):
        run.entry = Entry(
            "m", "e", compose(["seed=7", "model.dtype=float32"]), {"kind": "k"}, directory, "r"
        )
        run._settings = settings({"eval.engine": engine, "model.seed": 5})
        found = run._requested("key")
        assert found.env == "e"
        assert found.model == {"kind": "k"}
        assert found.run == "r"
        assert found.tasks == "key"
        assert set(found.playing) == common | more
        assert found.playing["seed"] == (5 if directory is None else 7)
        assert found.playing.get("engine") == (None if engine == "transformers" else "vllm")


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
        rows_ = [
            replace(row([]), task_id=f"{name}/t/{index}", env=name)
            for index in (0, 1)
            for name in names
        ]
        episodes = [(one, 0) for one in rows_]
        records = {
            (one.task_id, 0): record(1, {}, one.env)
            | {
                "split": "t",
                "index": one.task_id[-1],
                "started_at": 10.0 + number,
                "outcome": played_with(number % 2),
            }
            for number, one in enumerate(rows_[:num_played])
        }
        word = names[0] if len(names) == 1 else f"[{','.join(names)}]"
        requested = EvaluationIdentity(
            "e", {"name": "m"}, None, "tasks", "rules", {"pass_threshold": 1.0}
        )
        return summary_of(
            requested, compose([f"env={word}"]), episodes, records, "spent", (1.0, 2.0), "e-m"
        )

    def played_with(reward: float) -> dict[str, Any]:
        return record(1, {})["outcome"] | {"reward": float(reward)}

    alone = summary(["multiply"], 2)
    several = summary(["multiply", "sums"], 4)
    cut = summary(["multiply"], 1)
    assert alone["summary"] == alone["environments"]["multiply"]
    assert (alone["summary"]["bootstrap"] is None, several["summary"]["bootstrap"]) == (False, None)
    assert [*several["environments"]] == ["multiply", "sums"]
    assert [one["num_episodes"] for one in several["environments"].values()] == [2, 2]
    assert [
        (one["status"], one["stopped"], one["num_asked"], one["num_played"]) for one in (alone, cut)
    ] == [
        ("finished", None, 2, 2),
        ("stopped", "spent", 2, 1),
    ]
    assert alone["started"] == 10.0
    assert alone["ended"] == 14.0
    assert alone["tasks"]["multiply/t/1"] == {"hash": "hash", "rewards": [1.0]}
    assert cut["tasks"]["multiply/t/0"]["rewards"] == [0.0]


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
    void = played | {
        "outcome": played["outcome"] | {"reward": None, "void_reason": "lost", "num_turns": 0}
    }
    times = {"started": 0.0, "ended": 90.0, "id": "i", "run": None, "xp": "1"}
    log = json.loads(inspect_log(mixed() | times, [played, void]))
    sample, other = log["samples"]
    call = {"function": "look", "id": "c1", "type": "function", "arguments": {"at": "hall"}}
    assert sample["messages"][1] == {"role": "assistant", "content": "Dust.", "tool_calls": [call]}
    assert sample["messages"][2] == {
        "role": "tool",
        "content": "None.",
        "function": "look",
        "tool_call_id": "c1",
    }
    assert sample["id"] == "e/t/3"
    assert sample["epoch"] == 2
    assert sample["input"] == sample["messages"][:1]
    assert sample["output"]["choices"] == [{"message": sample["messages"][3]}]
    assert sample["scores"]["reward"]["value"] == 0.5
    assert sample["completed_at"][14:19] == "01:03"
    assert other["error"]["message"] == "lost"
    assert other["input"] == sample["messages"]
    assert other["output"]["choices"] == []
    assert "scores" not in other
    assert log["status"] == "cancelled"
    assert log["eval"]["config"]["epochs"] == 1
    assert log["eval"]["run_id"] == "i"
    (scores,) = log["results"]["scores"]
    assert scores["scored_samples"] == 6
    assert scores["unscored_samples"] == 1
    assert scores["metrics"]["passes_mean"]["value"] == pytest.approx(3 / 6)


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
    assert whole["reward"]["low"] == 0.0
    assert whole["reward"]["high"] == 1.0
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
    assert markdown([found]).splitlines()[1:3] == [
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| a | m_1 | 4 | 0.625 | 0.000 to 1.000 | 75.0% | 0 |",
    ]
    assert r"a & m\_1 & 4 & 0.625 & 0.000 to 1.000 & 75.0\% & 0 \\" in latex([found])
    assert list(notes(found)) == [
        "mix / m_1: 6 of 7 episodes: the budget is spent",
        "a: one of k passes (pass@k)  1: 75%, 2: 100%",
        "a: all of k pass (pass^k)    1: 75%, 2: 50%",
        "a: resampling tasks gives another interval of the reward: 0.250 to 1.000",
        "b: resampling tasks gives another interval of the reward: 0.000 to 0.250",
        "b: 1 void; by the limits of its rule and grader, they leave the mean between 0.083 and 0.417",
        "mix / m_1: 1,200 tokens read and 30 written for 0.0013 US dollars",
        "mix / m_1: judges: 5,000 tokens read and 7 written for 0.5000 US dollars",
    ]
    alone = found | with_intervals(record_of({"b/t/0": [0.5]}, threshold=0.5), are_counted=True)
    alone |= {name: found[name] for name in ("env", "model")}
    alone["usage"] = {"cost_usd": None, "judges": {"prompt_tokens": 1.0, "completion_tokens": 2.0}}
    assert rows([alone]) == [("mix", "m_1", "1", "0.500", "-", "100.0%", "0")]
    assert list(notes(alone)) == [
        "mix / m_1: no interval of the reward: one task says nothing about others",
        "mix / m_1: judges: 1 tokens read and 2 written, price unknown",
    ]


def test_samples_of_one_answer_and_a_checkpoint_that_was_chosen_here_are_told() -> None:
    playing = {"temperature": 0, "samples_per_task": 4, "tasks": "held_out"}
    found = mixed() | {"status": "finished", "model": {"name": "run@best"}, "playing": playing}
    said = [line for line in notes(found) if "temperature 0" in line or "was chosen" in line]
    assert len(said) == 2
    other = found | {"playing": {"temperature": 1.0, "samples_per_task": 4, "tasks": "train"}}
    assert len(list(notes(other))) == len(list(notes(found))) - 2


def test_an_evaluations_metrics_are_numbers_of_each_environment_and_of_all() -> None:
    metrics = metrics_of(mixed())
    assert metrics["eval/a/reward"] == 0.625
    assert metrics["eval/all/num_void"] == 1.0
    assert metrics["eval/all/judges/cost_usd"] == 0.5
    assert metrics["eval/all/cost_usd"] == 0.00125
    void = with_intervals(record_of({"a/t/0": [None], "b/t/0": [None]}), are_counted=False)[
        "summary"
    ]
    assert void["reward"] is None
    assert void["tokens_mean"] is None
    alone = metrics_of(
        mixed()
        | {
            "environments": {},
            "summary": mixed()["summary"] | {"bootstrap": None, "tokens_mean": None},
        }
    )
    assert "eval/all/tokens_mean" not in alone
