"""Episodes that a model is fine-tuned on: chosen by reward, and rendered as the policy's tokens and the environment's.

They come from records of episodes, of a run or an evaluation, or of a script that plays first, or from a file of
messages. The tokens are made by the same code as in a rollout, so that the mask is that of reinforcement learning.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xp.envs.base import EnvFault, Message, ToolSpec
from xp.envs.messages import chat_messages
from xp.episode.call_data import THINK_CLOSE, THINK_OPEN, without_thinking
from xp.episode.dialects import SYNTAX, Syntax, syntax_of
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.prompt import prompt_keys
from xp.episode.tokens import ChatTokens, TemplateFault
from xp.episode.tool_calls import ToolCall
from xp.episode.trajectory import TOOLS, TrajectoryWriter, read_trajectories, trajectory
from xp.errors import ExitCode, XpError
from xp.lib.data_files import is_set, place_of, rows_of_file, rows_of_hub
from xp.lib.load import load_object
from xp.lib.names import is_name
from xp.lib.text import counted
from xp.tasks.row import TaskRow
from xp.worker.token_budget import TokenBudget

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Solve = Callable[[list[Message], Mapping[str, Any]], Any]
"""A script: the dialogue so far and the task's description -> the next turn (see `turn_of`)."""
PHASE: Final = "sft"
REASONING: Final = ("reasoning_content", "reasoning", "thinking")
"""Keys of messages in which APIs and data sets have thinking."""


@dataclass(frozen=True)
class ExampleRule:
    """Selection of episodes."""

    min_reward: float
    """Smallest reward of a recorded episode."""
    per_task: int | None
    """Largest number of episodes of a task, those with the highest reward; None: all."""
    num_episodes: int | None
    """Largest number of episodes, drawn by `seed`; None: all."""
    thinking: bool
    """True keeps the text between <think> tags."""
    held_out_fraction: float
    """Share of the tasks that is not learnt from."""
    seed: int


@dataclass(frozen=True)
class Demonstration:
    """One episode to learn from."""

    task_id: str
    env: str
    reward: float
    messages: Sequence[Message]
    """The dialogue, up to and with the policy's last turn."""
    turns: Mapping[int, Calls]
    """Index of each message of the policy -> its calls."""
    tools: str
    """JSON list of the tools' schemas."""


@dataclass(frozen=True)
class Example:
    """Tokens of one demonstration."""

    ids: list[int]
    mask: list[int]
    """1 for tokens of the policy, which are learnt; 0 for all others, the prompt included."""

    def add(self, ids: Sequence[int], *, is_learnt: bool) -> None:
        """Appends tokens of the policy, or of the environment."""
        self.ids.extend(ids)
        self.mask.extend([int(is_learnt)] * len(ids))


def solvers_of(named: Mapping[str, str]) -> dict[str, Solve]:
    """The scripts, by environment; raises XpError for one that does not exist."""
    found: dict[str, Solve] = {}
    for env, name in named.items():
        try:
            found[env] = load_object(name)
        except (ImportError, AttributeError) as error:
            raise XpError(
                f"sft.data=solve: {name} cannot be loaded ({error}); give the class of environment {env} a static"
                " method solve(messages, task), or name a function: sft.data=solve:module:function"
            ) from error
    return found


def play(solvers: Mapping[str, Solve], rows: Sequence[TaskRow], mix: EnvironmentMixture, file: Path, run: str) -> None:
    """Plays one episode of each task by its environment's script, and records it.

    Raises:
        XpError: a script raised an exception, or returned something else than a turn.
    """
    file.unlink(missing_ok=True)  # of a killed attempt of the same number
    with TrajectoryWriter(file) as writer, ThreadPoolExecutor(max(1, min(mix.max_sessions(), len(rows)))) as pool:

        def one(row: TaskRow) -> tuple[TaskRow, Episode]:
            return row, _played(solvers[row.env], row, mix)

        for row, episode in pool.map(one, rows):
            writer.write(trajectory(episode, run=run, phase=PHASE, step=0, sample=0, tools=row.tools))


def _played(solve: Solve, row: TaskRow, mix: EnvironmentMixture) -> Episode:
    episode, syntax = mix.episode(row), syntax_of(mix.dialect(row.env))
    episode.start()
    try:
        task = mix.description(row)
    except EnvFault as fault:
        episode.give_up(f"{type(fault).__name__}: {fault}")
        return episode
    messages = list(episode.opening)
    while not episode.is_over:
        try:
            text = turn_of(solve(list(messages), task), syntax)
        except XpError:
            raise
        except Exception as error:
            raise XpError(
                f"sft.data=solve: the script raised {type(error).__name__} at task {row.task_id}: {error}"
            ) from error
        reply = episode.step(text)
        messages += [Message(role="assistant", content=text), *reply.messages]
    if mix.scores_groups(row.env):
        mix.score_group([episode]).result()
    return episode


def turn_of(value: Any, syntax: Syntax) -> str:
    """The text of a script's turn: a text, one call `(name, arguments)`, or a list of calls.

    Raises:
        XpError: the value is none of them.
    """
    if isinstance(value, str):
        return syntax.prose(value, False)
    calls = [value] if _is_call(value) else value
    if isinstance(calls, (list, tuple)) and calls and all(map(_is_call, calls)):
        return syntax.joined([syntax.write(name, arguments) for name, arguments in calls])
    raise XpError(
        f"sft.data=solve: the script returned {str(value)[:80]!r}; expected a text, a call (name, arguments), or a list"
        " of calls"
    )


def _is_call(value: Any) -> bool:
    match value:
        case (str(), Mapping()):
            return True
    return False


def recorded(files: Iterable[Path], counts: Counter[str]) -> Iterator[Demonstration]:
    """Scored episodes of files of trajectories; others are counted by why they cannot be learnt from."""
    for file in files:
        tools: dict[str, str] = {}
        for record in read_trajectories(file).records:
            outcome = record["outcome"]
            if outcome["reward"] is None:
                counts["void"] += 1
            elif outcome["status"] == EpisodeStatus.TRUNCATED:
                counts["truncated"] += 1
            elif outcome["num_malformed"]:
                counts["with a malformed call"] += 1
            else:
                digest = record[TOOLS]
                if digest not in tools:
                    if not is_name(digest):  # it is a part of a path
                        raise XpError(f"{file}: the record of tools is not a digest: {digest!r:.80}", ExitCode.RUN_DIR)
                    tools[digest] = (file.parent / TOOLS / f"{digest}.json").read_text()
                yield _of_record(record, tools[digest])


def _of_record(record: Mapping[str, Any], tools: str) -> Demonstration:
    messages = record["messages"]
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    # The dialogue's opening may have turns of an assistant, too.
    places = places[len(places) - record["outcome"]["num_turns"] :]
    calls: dict[int, list[tuple[str, Mapping[str, Any]]]] = {at: [] for at in places}
    for call in record["tool_calls"]:
        if "name" in call:
            calls[places[call["turn"]]].append((call["name"], call["arguments"]))
    return Demonstration(
        task_id=f"{record['env']}/{record['split']}/{record['index']}",
        env=record["env"],
        reward=record["outcome"]["reward"],
        messages=messages[: places[-1] + 1] if places else [],
        turns=calls,
        tools=tools,
    )


def of_messages(source: str, *, thinking: bool = False) -> Iterator[Demonstration]:
    """Dialogues of a file or a data set: rows with `messages` and, where there are tools, `tools`.

    Args:
        source: a path, or a name of xp.lib.data_files; of a data set, the split `train` or the only one.
        thinking: whether thinking is to be learnt, so that none beside `content` may be lost.

    Raises:
        XpError: it cannot be read, or a row is not such an object.
    """
    if is_set(source):
        splits = rows_of_hub(source)
        split = "train" if "train" in splits or len(splits) != 1 else next(iter(splits))
        if split not in splits:
            raise XpError(f"{source} has no split train, but {', '.join(splits)}; give a file of the one to learn from")
        rows = splits[split]
    else:
        rows = rows_of_file(place_of(source) or Path(source))
    has_all_keys = is_set(source) or source.endswith(".parquet")
    for number, row in enumerate(rows, start=1):
        where = f"{source}: row {number}"
        try:
            value = _without_nulls(row) if has_all_keys else row
            messages = chat_messages(value["messages"])
            tools = value.get("tools") or "[]"
            tools = tools if isinstance(tools, str) else json.dumps(tools)
            _specs(tools)
        except (EnvFault, AttributeError, KeyError, TypeError, ValueError) as error:
            raise XpError(
                f"{where}: expected `messages` and `tools` in OpenAI's form ({type(error).__name__}: {error})"
            ) from error
        for message in value["messages"]:
            if thinking and (key := next((key for key in REASONING if message.get(key)), None)):
                raise XpError(
                    f"{where}: `{key}` of a message is not read: write it into `content`, between the model's tags"
                    " (<think>...</think>), or set sft.thinking=cut"
                )
            if message.get("weight") == 0:
                raise XpError(f"{where}: a message has weight 0, but all turns are learnt: drop the row or the key")
        turns = {
            at: [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
            for at, message in enumerate(messages)
            if message["role"] == "assistant"
        }
        if not turns:
            raise XpError(f"{where}: no message of the role assistant, so there is nothing to learn")
        yield Demonstration(f"{Path(source).name}/{number}", "", math.inf, messages[: max(turns) + 1], turns, tools)


def _without_nulls(value: Any) -> Any:
    """The value without null keys: in a column of structs, every row has the keys of all rows."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def chosen(
    demonstrations: Iterable[Demonstration], rule: ExampleRule, excluded: frozenset[str], counts: Counter[str]
) -> list[Demonstration]:
    """The episodes that the rule selects, in a random order by its seed.

    Args:
        excluded: ids and prompts (`prompt_keys`) of held-out tasks, which are never trained on.
        counts: receives the numbers of others.
    """
    by_task: dict[str, list[Demonstration]] = {}
    for one in demonstrations:
        if not one.turns:
            counts["without a turn"] += 1
        elif not excluded.isdisjoint(_names(one)):
            counts["of held-out tasks"] += 1
        elif one.reward < rule.min_reward:
            counts[f"with a reward below {rule.min_reward:g}"] += 1
        else:
            by_task.setdefault(one.task_id, []).append(one)
    best = [
        one for task in sorted(by_task) for one in sorted(by_task[task], key=lambda one: -one.reward)[: rule.per_task]
    ]
    random.Random(rule.seed).shuffle(best)
    return best[: rule.num_episodes]


def _names(one: Demonstration) -> Iterator[str]:
    """A dialogue's task, and the prompt of each of its turns, alone and with what came before."""
    yield one.task_id
    for at in one.turns:
        yield from prompt_keys(one.messages[:at])
        yield from prompt_keys(one.messages[at - 1 : at])


def rendered(
    demonstrations: Sequence[Demonstration],
    rule: ExampleRule,
    chat: ChatTokens,
    dialect_of: Callable[[str], Any],
    budget: TokenBudget,
    counts: Counter[str],
) -> tuple[list[Example], list[Example]]:
    """The tokens of the episodes to learn from, and of those of the held-out share of tasks."""
    learnt: list[Example] = []
    held_out: list[Example] = []
    for one in demonstrations:
        try:
            example = example_of(one, chat, syntax_of(dialect_of(one.env)), budget, thinking=rule.thinking)
        except TemplateFault as fault:
            counts[f"that the chat template does not render ({fault.reason})"] += 1
            continue
        if example is None:
            counts["longer than the token budget of training"] += 1
        else:
            # Not the hash by which evaluations choose their tasks: the chosen ones would all be on one side.
            share = int.from_bytes(hashlib.sha256(f"sft/{one.task_id}".encode()).digest()[:7]) / 2**56
            (held_out if share < rule.held_out_fraction else learnt).append(example)
    return learnt, held_out


def example_of(
    one: Demonstration, chat: ChatTokens, syntax: Syntax, budget: TokenBudget, *, thinking: bool = True
) -> Example | None:
    """The tokens of one episode as a rollout has them; None: a part is longer than the budget.

    Raises:
        TemplateFault: the chat template does not render it.
    """
    places = sorted(one.turns)
    prompt = chat.prompt(one.messages[: places[0]], one.tools)
    if len(prompt) > budget.max_prompt_tokens:
        return None
    example = Example([*prompt], [0] * len(prompt))
    for number, at in enumerate(places):
        text = text_of(one.messages[at]["content"], one.turns[at], syntax, one.tools, thinking=thinking)
        ids = chat.turn(after_prompt(chat.text(example.ids[-16:]), text), is_call=bool(one.turns[at]))
        if len(ids) > budget.next_turn(len(example.ids) - len(prompt)):
            return None
        example.add(ids, is_learnt=True)
        if number + 1 < len(places):
            example.add(chat.reply(one.messages[at + 1 : places[number + 1]], last_id=ids[-1]), is_learnt=False)
    return example


def after_prompt(prompt: str, text: str) -> str:
    """A turn after the end of its prompt, which opens its thinking with the templates of thinking models.

    Raises:
        TemplateFault: the prompt has closed the thinking, and the turn opens it again.
    """
    if prompt.rstrip().endswith(THINK_CLOSE) and text.lstrip().startswith(THINK_OPEN):
        raise TemplateFault("its prompt has no thinking, and the episode has some; set sft.thinking=cut")
    if not prompt.rstrip().endswith(THINK_OPEN):
        return text
    if text.lstrip().startswith(THINK_OPEN):
        return text.lstrip().removeprefix(THINK_OPEN).removeprefix("\n")
    return text if THINK_CLOSE in text else f"\n{THINK_CLOSE}\n\n{text}"


def text_of(content: str, calls: Calls, syntax: Syntax, tools: str, *, thinking: bool) -> str:
    """A turn as the policy writes it: the recorded text if it has these calls in the policy's dialect.

    Otherwise the calls are written in that dialect, after the text if it has no calls in any dialect (an API's).
    """
    content = content if thinking else without_thinking(content, None, *syntax.thinking)
    expected = tuple(ToolCall(name, arguments) for name, arguments in calls)
    specs = _specs(tools)
    if not calls:
        return syntax.prose(content, False)
    if syntax.read(content, lambda: specs) == expected:
        return content
    is_prose = all(not other.read(content, lambda: specs) for other in SYNTAX.values())
    written = syntax.joined([syntax.write(name, arguments) for name, arguments in calls])
    return f"{syntax.prose(content, True) if is_prose and content else ''}{written}"


def _specs(tools: str) -> list[ToolSpec]:
    functions = [one.get("function", one) for one in json.loads(tools)]
    return [ToolSpec(one["name"], one.get("description", ""), one.get("parameters", {})) for one in functions]


def summary(learnt: Sequence[Example], held_out: Sequence[Example], counts: Mapping[str, int]) -> str:
    """One line about the episodes, and those that are left out with the reason."""
    tokens = sum(sum(one.mask) for one in learnt)
    left_out = "; ".join(f"{number} {why}" for why, number in counts.items())
    return (
        f"{counted(len(learnt), 'episode')} to learn from ({tokens:,} tokens of the policy),"
        f" {len(held_out)} held out; left out: {left_out or 'none'}"
    )
