"""Episodes to fine-tune on have the tokens and the mask of a rollout; their selection, and a script's turns."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_of
from tests.support.demonstrations import BUDGET, RULE, TOOL_SPECS, TOOLS
from tests.support.fake_session import RULES, FakeSession, steady
from tests.support.sections import chat_model, replace, run_spec
from xp.envs.base import EnvUnavailable, Message, Task, ToolSpec
from xp.episode.dialects import SYNTAX, syntax_of
from xp.episode.episode import Episode
from xp.episode.prompt import prompt_keys, tool_schemas
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import TrajectoryWriter, trajectory
from xp.errors import XpError
from xp.spec import RunSpec, Sampling, Thinking
from xp.spec.dialect import Dialect
from xp.spec.sft import LongDialogues, LossOn
from xp.tasks.row import Purpose, TaskRow
from xp.tasks.schedule import evaluated_episodes
from xp.worker.demonstrations import (
    Demonstration,
    Example,
    chosen,
    example_of,
    play,
    recorded,
    rendered,
)
from xp.worker.engines.conversation import EpisodeEngine, RolloutTurn
from xp.worker.engines.play import EpisodePlay

MODELS = {
    Dialect.HERMES: ("qwen3_instruct_2507", "<|im_end|>", "<|im_end|>"),
    Dialect.QWEN_XML: ("qwen3_5_nothink", "<|im_end|>", "<|im_end|>"),
    Dialect.GLM: ("glm4moe", "<|user|>", "<|observation|>"),
    Dialect.LLAMA_JSON: ("llama3_1", "<|eot_id|>", "<|eot_id|>"),
    Dialect.PYTHONIC: ("lfm2", "<|im_end|>", "<|im_end|>"),
    Dialect.HARMONY: ("gptoss", "<|return|>", "<|call|>"),
    Dialect.ACTION: ("qwen3_instruct_2507", "<|im_end|>", "<|im_end|>"),
}
"""Dialect -> a template with it, and the tokens that its model writes after a plain turn and after a call."""
ONLY_TOOL = ToolSpec(
    "move",
    "",
    {"type": "object", "properties": {"to": {"type": "string"}, "n": {"type": "integer"}}},
)
"""An action is a call of the environment's only tool."""


def with_sft(**changes: Any) -> RunSpec:
    return replace(RULE, sft=replace(RULE.sft, **changes))


def within(budget: Sampling) -> RunSpec:
    values = {name: getattr(budget, name) for name in Sampling.model_fields}
    return replace(RULE, training=replace(RULE.training, **values))


WORDS = ("the", "red ", "ключ", "{x}", " <b>", "7.5", "\n", "said: ")
NUM_EPISODES = 15


class Scripted(EpisodeEngine):
    """An engine that writes given turns: (text, id of the token that ends it)."""

    def __init__(
        self, opening: Any, tokenizer: Any, turns: Sequence[Sequence[tuple[str, int]]]
    ) -> None:
        super().__init__(opening, [], BUDGET, "1", lambda _: False)  # type: ignore[arg-type]
        self._turns = [iter(one) for one in turns]
        self._tokenizer = tokenizer

    is_generating = False

    def step(self, is_live: bool) -> None:
        raise AssertionError

    def _begin_turn(self, number: int) -> None:
        text, end = next(self._turns[number])
        ids = [*self._tokenizer(text, add_special_tokens=False)["input_ids"], end]
        self.conversations[number].append_policy_tokens(ids, [-0.5] * len(ids))
        self._opening.deliver(RolloutTurn(number, ids, is_cut=False))


class Game(FakeSession):
    def tools(self) -> tuple[ToolSpec, ...]:
        return TOOL_SPECS


class GameOfActions(FakeSession):
    def tools(self) -> tuple[ToolSpec, ...]:
        return (ONLY_TOOL,)


class Mix:
    """Environments of the tests' own sessions."""

    def __init__(self, dialect: Dialect) -> None:
        self._rules = replace(RULES, dialect=dialect, max_turns=6)

    def episode(self, row: TaskRow) -> Episode:
        game = GameOfActions if self._rules.dialect is Dialect.ACTION else Game
        return Episode(
            Task(row.env, row.split, row.index),
            lambda: game(steady),
            self._rules,
            prepared=row.messages,
        )

    def max_sessions(self) -> int:
        return 32

    def scores_groups(self, _: str) -> bool:
        return False

    def dialect(self, _: str) -> Dialect | str:
        return self._rules.dialect

    def description(self, row: TaskRow) -> dict[str, Any]:
        if row.index == 13:
            raise EnvUnavailable("it is down")
        return {"number": row.index}


def row(number: int) -> TaskRow:
    opening = (Message(role="user", content="play"),)
    return TaskRow(
        f"fake/train/{number}", "fake", Purpose.TRAIN, "train", number, "h", opening, TOOLS, 1.0
    )


@pytest.mark.parametrize("dialect", MODELS)
def test_tokens_and_mask_are_those_of_a_rollout(dialect: Dialect, tmp_path: Path) -> None:
    name, plain_end, call_end = MODELS[dialect]
    chat = ChatTokens(tokenizer_of(name, tmp_path), chat_model(dialect=dialect))
    syntax = syntax_of(dialect)
    ends = chat.tokenizer.convert_tokens_to_ids([plain_end, call_end])
    rng = random.Random(f"{dialect}")
    has_actions = dialect is Dialect.ACTION
    turns = []
    for _ in range(NUM_EPISODES):
        calls = [rng.choice(("move", "look")) for _ in range(rng.randrange(4))]
        written = [
            syntax.write(call, {"to": "".join(rng.choices(WORDS, k=3)), "n": rng.randrange(99)})
            for call in calls
        ]
        has_won = rng.random() < 0.7 and not has_actions
        last = (
            (syntax.write("win", {}), ends[1])
            if has_won
            else (syntax.prose("I give up.", False), ends[0])
        )
        turns.append([*((text, ends[1]) for text in written), last])
    tools = json.dumps(tool_schemas((ONLY_TOOL,)), sort_keys=True) if has_actions else TOOLS
    numbered = [(replace(row(number), tools=tools), 0) for number in range(NUM_EPISODES)]
    mix: Any = Mix(dialect)
    rollouts = list(
        EpisodePlay(lambda one: Scripted(one, chat.tokenizer, turns), chat, numbered, mix)
    )
    file = tmp_path / "trajectories" / "train.jsonl"
    with TrajectoryWriter(file) as writer:
        for one in rollouts:
            writer.write(one.record.trajectory("runs/x", "train", 0))
    counts = Counter[str]()
    demonstrations = list(recorded([file], counts))
    assert len(demonstrations) == NUM_EPISODES
    assert not counts
    for one, demonstration in zip(rollouts, demonstrations, strict=True):
        sample = example_of(demonstration, chat, syntax, RULE)
        assert sample is not None
        prompt = one.conversation.prompt_ids
        assert sample.ids == [*prompt, *one.conversation.completion_ids]
        assert sample.mask == [*[0] * len(prompt), *one.conversation.mask]
        assert sum(sample.mask) == one.record.tokens.generated
    num_calls = sum(len(calls) for one in demonstrations for calls in one.turns.values())
    assert num_calls > NUM_EPISODES


def qwen(directory: Path) -> ChatTokens:
    return ChatTokens(tokenizer_of("qwen3_instruct_2507", directory))


def in_hermes(
    given: Sequence[Demonstration],
    spec: RunSpec,
    chat: ChatTokens,
    counts: Counter[str] | None = None,
) -> tuple[list[Example], list[Example]]:
    """The examples to train on, and the held-out ones."""
    return rendered(
        given, spec, chat, lambda _: Dialect.HERMES, Counter() if counts is None else counts
    )


def trained_ids(sample: Example) -> list[int]:
    return [token for token, is_trained in zip(sample.ids, sample.mask, strict=True) if is_trained]


def demonstration(
    number: int = 0, reward: float = 1.0, text: str = "hi", **changes: Any
) -> Demonstration:
    messages = [Message(role="user", content="play"), Message(role="assistant", content=text)]
    return replace(
        Demonstration(f"fake/train/{number}", "fake", reward, messages, {1: []}, TOOLS), **changes
    )


def test_the_best_episodes_of_each_task_are_chosen_and_held_out_tasks_never() -> None:
    given = [
        *(demonstration(1, reward, text=f"{reward}") for reward in (0.5, 0.9, 0.7)),
        demonstration(2, 0.6),
        demonstration(3, 0.4),
        demonstration(4, 0.9),
        demonstration(5, 0.9, turns={}),
    ]
    counts = Counter[str]()
    rule = with_sft(min_reward=0.5, per_task=2)
    best = chosen(given, rule, frozenset({"fake/train/4"}), counts)
    assert sorted((one.task_id[-1], one.reward) for one in best) == [
        ("1", 0.7),
        ("1", 0.9),
        ("2", 0.6),
    ]
    assert counts == {
        "with a reward below 0.5": 1,
        "of held-out tasks": 1,
        "without a turn to learn": 1,
        "beyond sft.per_task=2": 1,
    }


def test_a_dialogue_with_a_held_out_prompt_is_left_out_and_counted() -> None:
    def said(*contents: str) -> Demonstration:
        messages = [
            Message(role=("user", "assistant")[at % 2], content=content)
            for at, content in enumerate(contents)
        ]
        turns = {at: [] for at in range(1, len(contents), 2)}
        return demonstration(len(contents), messages=messages, turns=turns)

    system = Message(role="system", content="Think.")
    held_out = frozenset(prompt_keys([system, Message(role="user", content="2 + 2?")]))
    others = [said("2 + 3?", "5"), said("hello", "hi", "2 + 4?", "6")]
    leaks = [
        said("2 +\n2? ", "4"),
        said("hello", "hi", "2 + 2?", "4"),
    ]
    counts = Counter[str]()
    kept = chosen([*others, *leaks], RULE, held_out, counts)
    assert sorted(map(repr, kept)) == sorted(map(repr, others))
    assert counts == {"of held-out tasks": 2}


def test_a_share_of_the_tasks_is_held_out_with_all_their_episodes(tmp_path: Path) -> None:
    chat = qwen(tmp_path)
    given = [
        demonstration(number, text=f"{number} {sample}")
        for number in range(100)
        for sample in range(2)
    ]
    trained, held_out = in_hermes(given, with_sft(held_out_fraction=0.25), chat)
    assert len(trained) + len(held_out) == 200
    assert 20 < len(held_out) < 80
    numbers = [
        {chat.text(one.ids[:-1]).split()[-2] for one in part} for part in (trained, held_out)
    ]
    assert not numbers[0] & numbers[1]


def test_tasks_that_an_evaluation_chose_by_hash_are_on_both_sides(tmp_path: Path) -> None:
    chat = qwen(tmp_path)
    tasks = evaluated_episodes(
        run_spec(evaluation__num_tasks=60).evaluation, [row(number) for number in range(2000)]
    )
    given = [demonstration(one.index) for one in tasks]
    trained, held_out = in_hermes(given, with_sft(held_out_fraction=0.2), chat)
    assert 40 <= len(trained) <= 56
    assert len(held_out) == 60 - len(trained)


@pytest.mark.parametrize(
    ("budget", "is_rendered"),
    [
        (BUDGET, True),
        (replace(BUDGET, max_tokens_per_turn=3), True),  # "hi" and the token that ends the turn
        (replace(BUDGET, max_tokens_per_turn=2), False),
        (replace(BUDGET, max_prompt_tokens=5), False),
    ],
)
def test_what_a_rollout_could_not_write_is_left_out(
    budget: Sampling, is_rendered: bool, tmp_path: Path
) -> None:
    chat = qwen(tmp_path)
    counts = Counter[str]()
    trained, _ = in_hermes([demonstration()], within(budget), chat, counts)
    assert len(trained) == is_rendered
    assert sum(counts.values()) == (not is_rendered)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            '<tool_call>\n{"name": "look", "arguments": {"n": 1}}\n</tool_call>',
            None,
        ),  # the policy's own dialect: as it is
        ("I look.", "I look.\n{call}"),  # an API's text, its calls apart
        ("[look(n=1)]", "{call}"),  # another dialect
    ],
)
def test_calls_are_written_in_the_policys_dialect(
    content: str, expected: str | None, tmp_path: Path
) -> None:
    chat = qwen(tmp_path)
    syntax = SYNTAX[Dialect.HERMES]
    sample = example_of(
        demonstration(text=content, turns={1: [("look", {"n": 1})]}), chat, syntax, RULE
    )
    assert sample is not None
    call = syntax.write("look", {"n": 1})
    assert chat.text(trained_ids(sample)) == (
        content if expected is None else expected.replace("{call}", call)
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\nyes"),
        ("qwen3", "yes"),
        ("qwen3_5_think", "<think>\nhm\n</think>\n\nyes"),
        ("qwen3_5_think", "yes"),
        ("glm4moe", "yes"),
        ("nemotron_3_nano", "yes"),
        ("gemma4_v5", "yes"),
    ],
)
def test_a_turn_of_a_file_begins_as_the_template_writes_it(
    template: str, text: str, tmp_path: Path
) -> None:
    """With thinking, and without: some templates write an empty block then, or their prompt opens one."""
    chat = ChatTokens(tokenizer_of(template, tmp_path))
    sample = example_of(
        demonstration(text=text, tools="[]"),
        chat,
        SYNTAX[Dialect.HERMES],
        RULE,
    )
    assert sample is not None
    messages = [dict(one) for one in demonstration(text=text).messages]
    whole = chat.tokenizer.apply_chat_template(messages, tokenize=False)
    written = chat.tokenizer.decode(sample.ids).removesuffix(
        "<|user|>" if template == "glm4moe" else ""
    )
    # Nemotron's prompt has a line break that its history has not.
    assert written.replace("<think>\n</think>", "<think></think>") == whole.rstrip("\n")


def test_another_models_text_is_on_gpt_oss_channels(tmp_path: Path) -> None:
    """Without a channel the model would learn a turn that it cannot begin."""
    chat = ChatTokens(tokenizer_of("gptoss", tmp_path))
    given = demonstration(text="It is 42.")
    sample = example_of(given, chat, SYNTAX[Dialect.HARMONY], RULE)
    assert sample is not None
    assert chat.tokenizer.decode(sample.ids) == chat.tokenizer.apply_chat_template(
        list(given.messages), tools=json.loads(TOOLS), tokenize=False
    )


def test_a_turn_of_the_policy_stays_as_it_was(tmp_path: Path) -> None:
    chat = ChatTokens(tokenizer_of("qwen3", tmp_path))
    sample = example_of(
        replace(demonstration(text="yes"), is_own=True), chat, SYNTAX[Dialect.HERMES], RULE
    )
    assert sample is not None
    assert chat.tokenizer.decode(sample.ids).endswith("<|im_start|>assistant\nyes<|im_end|>")


def test_thinking_after_a_prompt_without_it_is_left_out_with_the_reason(tmp_path: Path) -> None:
    chat = ChatTokens(tokenizer_of("qwen3_5_nothink", tmp_path))
    counts = Counter[str]()
    given = [demonstration(text="<think>hm</think>yes"), demonstration(text="yes")]
    trained, _ = in_hermes(given, RULE, chat, counts)
    assert len(trained) == 1
    assert "set sft.thinking=cut" in next(iter(counts))


def test_thinking_is_kept_or_cut(tmp_path: Path) -> None:
    chat = qwen(tmp_path)
    one = demonstration(text="<think>hm</think>yes")
    texts = []
    for thinking in (Thinking.KEEP, Thinking.CUT):
        (sample,), _ = in_hermes([one], with_sft(thinking=thinking), chat)
        texts.append(chat.text(trained_ids(sample)))
    assert texts == ["<think>hm</think>yes", "yes"]


def talk() -> Demonstration:
    texts = [
        ("user", "one"),
        ("assistant", "two"),
        ("user", "three"),
        ("assistant", "four"),
    ]
    messages = [Message(role=role, content=text) for role, text in texts]
    return demonstration(
        messages=messages,
        turns={1: [], 3: []},
        tools="[]",
    )


@pytest.mark.parametrize(
    ("loss_on", "expected"),
    [("turns", "two<|im_end|>four<|im_end|>"), ("last_turn", "four<|im_end|>"), ("all", None)],
)
def test_the_loss_is_on_the_turns_the_last_one_or_all_tokens(
    loss_on: str, expected: str | None, tmp_path: Path
) -> None:
    chat = qwen(tmp_path)
    spec = with_sft(loss_on=LossOn(loss_on))
    given = chosen([talk()], spec, frozenset(), Counter())
    ((sample,), _) = in_hermes(given, spec, chat)
    assert chat.tokenizer.decode(trained_ids(sample)) == (
        chat.tokenizer.decode(sample.ids[1:]) if expected is None else expected
    )


def test_a_long_episode_is_left_out_or_cut_and_counted(tmp_path: Path) -> None:
    chat = qwen(tmp_path)
    counts = Counter[str]()
    (whole,), _ = in_hermes([talk()], RULE, chat)
    number = len(whole.ids)

    def examples(**rule: Any) -> list[Example]:
        return in_hermes([talk()], with_sft(**rule), chat, counts)[0]

    assert examples(max_tokens=number) == [whole]
    assert examples(max_tokens=number - 3) == []
    (cut,) = examples(max_tokens=number - 3, too_long=LongDialogues.CUT)
    assert (cut.ids, cut.mask, cut.is_cut) == (whole.ids[:-3], whole.mask[:-3], True)
    assert examples(max_tokens=3, too_long=LongDialogues.CUT) == []
    assert counts == {
        f"longer than {number - 3} tokens": 1,
        "without a token to train on in the first 3": 1,
    }


def test_a_script_plays_and_its_faults_are_told(tmp_path: Path) -> None:
    mix: Any = Mix(Dialect.HERMES)

    def solve(messages: list[Message], task: Any) -> Any:
        return ("win", {}) if len(messages) > 2 else [("move", {"n": task["number"]})]

    file = tmp_path / "trajectories" / "solve.jsonl"
    play({"fake": solve}, [row(number) for number in (1, 13, 2)], mix, file, "runs/x")
    counts = Counter[str]()
    won = list(recorded([file], counts))
    assert counts == {"void": 1}
    for number, demonstrated in zip((1, 2), won, strict=True):
        assert (demonstrated.task_id, demonstrated.reward) == (f"fake/train/{number}", 1.5)
        assert list(demonstrated.turns.values()) == [[("move", {"n": number})], [("win", {})]]
    with pytest.raises(XpError, match="the script raised ZeroDivisionError at task fake/train/1"):
        play({"fake": lambda *_: 1 / 0}, [row(1)], mix, file, "runs/x")


def test_truncated_and_malformed_episodes_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "trajectories" / "train.jsonl"
    win = SYNTAX[Dialect.HERMES].write("win", {})
    move = SYNTAX[Dialect.HERMES].write("move", {})
    with TrajectoryWriter(file) as writer:
        for words in (["<tool_call>{", win], [move] * 3, [win]):
            episode = Episode(
                Task("fake", "train", 0), lambda: FakeSession(steady), replace(RULES, max_turns=3)
            )
            for word in words:
                episode.step(word)
            record = trajectory(episode, run="runs/x", phase="train", step=0, sample=0, tools=TOOLS)
            writer.write(record)
    counts = Counter[str]()
    assert [one.reward for one in recorded([file], counts)] == [1.0]
    assert counts == {"with a malformed call": 1, "truncated": 1}
