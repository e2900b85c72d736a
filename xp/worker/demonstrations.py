"""Episodes that a model is fine-tuned on: chosen by reward, and rendered as the policy's tokens and the environment's.

They come from records of episodes, of a run or an evaluation, or of a script that plays first, or from a file of
dialogues (xp.worker.dialogues). The tokens are made by the same code as in a rollout, so that the mask is that of
reinforcement learning.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from xp.envs.base import EnvFault, Message, ToolSpec
from xp.envs.call_data import THINK_CLOSE, THINK_OPEN, without_thinking
from xp.envs.pictures import digests_of, pictures_of
from xp.episode.dialects import SYNTAX, Syntax, syntax_of
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus, Reply
from xp.episode.play import WrittenTurn, play_here
from xp.episode.prompt import prompt_keys
from xp.episode.tokens import ChatTokens, TemplateFault
from xp.episode.tool_calls import ToolCall
from xp.episode.trajectory import TOOLS, TrajectoryWriter, own_turns, read_trajectories, trajectory
from xp.errors import ExitCode, XpError
from xp.lib.digest import digest_number
from xp.lib.load import load_object
from xp.lib.reading import is_name
from xp.lib.text import counted
from xp.spec import RunSpec, Thinking
from xp.spec.sft import LongDialogues, LossOn
from xp.tasks.row import TaskRow

Calls = Sequence[tuple[str, Mapping[str, Any]]]
Solve = Callable[[list[Message], Mapping[str, Any]], Any]
"""A script: the dialogue so far and the task's description -> the next turn (see `turn_of`)."""
PHASE: Final = "sft"
_CLOSED: Final = f"\n{THINK_CLOSE}\n\n"
"""End of an empty block of thinking that the prompt opens."""


@dataclass(frozen=True)
class Demonstration:
    """One episode to train on."""

    task_id: str
    env: str
    reward: float
    messages: Sequence[Message]
    """The dialogue, up to and with the policy's last turn."""
    turns: Mapping[int, Calls]
    """Index of each message of the policy -> its calls."""
    tools: str
    """JSON list of the tools' schemas."""
    without_loss: frozenset[int] = frozenset()
    """Indices of the policy's turns that are not trained on."""
    is_own: bool = False
    """True if this policy wrote the turns in a run: their tokens stay as they were."""


@dataclass(frozen=True)
class Example:
    """Tokens of one demonstration."""

    ids: list[int]
    mask: list[int]
    """1 for tokens that are trained on; 0 for all others."""
    is_cut: bool = False
    """True if tokens after `sft.max_tokens` are left out."""
    pictures: list[str] = field(default_factory=list)
    """Digests of the pictures whose placeholders are among the tokens, in their order."""

    def add(self, ids: Sequence[int], *, is_trained: bool) -> None:
        """Appends tokens."""
        self.ids.extend(ids)
        self.mask.extend([int(is_trained)] * len(ids))


def solvers_of(named: Mapping[str, str]) -> dict[str, Solve]:
    """The scripts, by environment; raises XpError for one that does not exist."""
    solvers: dict[str, Solve] = {}
    for env, name in named.items():
        try:
            solvers[env] = load_object(name)
        except (ImportError, AttributeError) as error:
            raise XpError(
                f"sft.data=solve: {name} cannot be loaded ({error}); give the class of environment {env} a static"
                " method solve(messages, task), or name a function: sft.data=solve:module:function"
            ) from error
    return solvers


def play(
    solvers: Mapping[str, Solve],
    rows: Sequence[TaskRow],
    mix: EnvironmentMixture,
    file: Path,
    run: str,
) -> None:
    """Plays one episode of each task by its environment's script, and records it.

    Raises:
        XpError: a script raised an exception, or returned something else than a turn.
    """
    file.unlink(missing_ok=True)  # of a killed attempt of the same number
    with (
        TrajectoryWriter(file) as writer,
        ThreadPoolExecutor(max(1, min(mix.max_sessions(), len(rows)))) as pool,
    ):

        def played(row: TaskRow) -> tuple[TaskRow, Episode]:
            episode = mix.episode(row)
            syntax = syntax_of(mix.dialect(row.env))
            play_script(solvers[row.env], episode, lambda: mix.description(row), syntax)
            if mix.scores_groups(row.env):
                mix.score_group([episode]).result()
            return row, episode

        for row, episode in pool.map(played, rows):
            writer.write(
                trajectory(episode, run=run, phase=PHASE, step=0, sample=0, tools=row.tools)
            )


def play_script(
    solve: Solve, episode: Episode, describe: Callable[[], Mapping[str, Any]], syntax: Syntax
) -> None:
    """Plays an episode by a script; raises XpError if the script raises or returns something else than a turn.

    Args:
        describe: fetches the environment's description of the task.
    """
    episode.start()
    try:
        task = describe()
    except EnvFault as fault:
        episode.give_up(f"{type(fault).__name__}: {fault}")
        return
    messages = list(episode.opening)

    def write(reply: Reply | None) -> WrittenTurn:
        if reply is not None:
            messages.extend(reply.messages)
        try:
            text = turn_of(solve(list(messages), task), syntax)
        except XpError:
            raise
        except Exception as error:
            raise XpError(
                f"sft.data=solve: the script raised {type(error).__name__} at task {episode.task.id}: {error}"
            ) from error
        messages.append(Message(role="assistant", content=text))
        return WrittenTurn(text)

    play_here(episode, write)


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


def recorded(
    files: Iterable[Path], counts: Counter[str], *, is_own: bool = True
) -> Iterator[Demonstration]:
    """Scored episodes of files of trajectories; others are counted by why they cannot be trained on.

    Args:
        files: files of trajectories.
        counts: receives the numbers of others.
        is_own: whether a policy played them in a training, and not a script or another model.
    """
    for file in files:
        tools: dict[str, str] = {}
        for record in read_trajectories(file):
            outcome = record["outcome"]
            if outcome["reward"] is None:
                counts["void"] += 1
            elif outcome["status"] == EpisodeStatus.TRUNCATED:
                counts["truncated"] += 1
            elif outcome["num_malformed"]:
                counts["with a malformed call"] += 1
            elif any(
                call.get("result", {}).get("follows") is not None for call in record["tool_calls"]
            ):
                counts["of a program that rewrote its history"] += 1
            else:
                digest = record[TOOLS]
                if digest not in tools:
                    if not is_name(digest):  # it is a part of a path
                        raise XpError(
                            f"{file}: the record of tools is not a digest: {digest!r:.80}",
                            ExitCode.RUN_DIR,
                        )
                    tools[digest] = (file.parent / TOOLS / f"{digest}.json").read_text()
                yield replace(_of_record(record, tools[digest]), is_own=is_own)


def _of_record(record: Mapping[str, Any], tools: str) -> Demonstration:
    messages = record["messages"]
    positions = own_turns(messages, record["outcome"]["num_turns"])
    calls: dict[int, list[tuple[str, Mapping[str, Any]]]] = {at: [] for at in positions}
    for call in record["tool_calls"]:
        if "name" in call:
            calls[positions[call["turn"]]].append((call["name"], call["arguments"]))
    return Demonstration(
        task_id=f"{record['env']}/{record['split']}/{record['index']}",
        env=record["env"],
        reward=record["outcome"]["reward"],
        messages=messages[: positions[-1] + 1] if positions else [],
        turns=calls,
        tools=tools,
    )


def chosen(
    demonstrations: Iterable[Demonstration],
    spec: RunSpec,
    excluded: frozenset[str],
    counts: Counter[str],
) -> list[Demonstration]:
    """The episodes that `spec.sft` selects, in a random order by the seed.

    Args:
        excluded: ids and prompts (`prompt_keys`) of held-out tasks, which are never trained on.
        counts: receives the numbers of others.
    """
    rule = spec.sft
    by_task = dict[str, list[Demonstration]]()
    if rule.min_reward is None:
        least = spec.evaluation.pass_threshold
    else:
        least = rule.min_reward
    for demonstration in demonstrations:
        if rule.loss_on is LossOn.LAST_TURN:
            without_loss = demonstration.without_loss.union(sorted(demonstration.turns)[:-1])
            demonstration = replace(demonstration, without_loss=without_loss)
        if len(demonstration.without_loss) == len(demonstration.turns):
            counts["without a turn to learn"] += 1
        elif not excluded.isdisjoint(_names(demonstration)):
            counts["of held-out tasks"] += 1
        elif demonstration.reward < least:
            counts[f"with a reward below {least:g}"] += 1
        else:
            by_task.setdefault(demonstration.task_id, []).append(demonstration)
    best = [
        demonstration
        for task in sorted(by_task)
        for demonstration in sorted(by_task[task], key=lambda demonstration: -demonstration.reward)[
            : rule.per_task
        ]
    ]
    num_beyond = sum(map(len, by_task.values())) - len(best)
    if num_beyond:
        counts[f"beyond sft.per_task={rule.per_task}"] += num_beyond
    random.Random(spec.seed).shuffle(best)
    return best[: rule.num_episodes]


def _names(demonstration: Demonstration) -> Iterator[str]:
    """A dialogue's task, and the prompt of each of its turns, alone and with what came before."""
    yield demonstration.task_id
    for at in demonstration.turns:
        yield from prompt_keys(demonstration.messages[:at])
        yield from prompt_keys(demonstration.messages[at - 1 : at])


def rendered(
    demonstrations: Sequence[Demonstration],
    spec: RunSpec,
    chat: ChatTokens,
    dialect_of: Callable[[str], Any],
    counts: Counter[str],
) -> tuple[list[Example], list[Example]]:
    """The tokens of the episodes to train on, and of those of the held-out share of tasks."""
    trained: list[Example] = []
    held_out: list[Example] = []
    for demonstration in demonstrations:
        if chat.pictures is not None:
            most_pictures = chat.pictures.images.per_episode
            if len(pictures_of(demonstration.messages)) > most_pictures:
                counts[f"with more than model.images.per_episode={most_pictures} images"] += 1
                continue
        mark = special_token_in(demonstration, chat)
        if mark is not None:
            counts[f"with {mark} in a text, which would be a special token"] += 1
            continue
        try:
            example = example_of(
                demonstration, chat, syntax_of(dialect_of(demonstration.env)), spec
            )
        except TemplateFault as fault:
            counts[f"that the chat template does not render ({fault.reason})"] += 1
            continue
        if example is None:
            limit = "the token budget of training"
            if spec.sft.max_tokens is not None:
                limit = f"{spec.sft.max_tokens} tokens"
            counts[f"longer than {limit}"] += 1
        elif not any(example.mask):
            counts[f"without a token to train on in the first {len(example.ids)}"] += 1
        else:
            # Not the hash by which evaluations choose their tasks: the chosen ones would all be on one side.
            name = f"sft/{demonstration.task_id}"
            share = digest_number(name, 7) / 2**56
            side = held_out if share < spec.sft.held_out_fraction else trained
            side.append(example)
    return trained, held_out


def special_token_in(demonstration: Demonstration, chat: ChatTokens) -> str | None:
    """A special token that the text of a message spells, and which would begin or end a turn. None means that there is
    none.

    A turn of the policy may have others, as those of gpt-oss' channels.
    """
    for at, message in enumerate(demonstration.messages):
        markers: list[str] = chat.ends.special.findall(message["content"])
        mark = next(
            (mark for mark in markers if at not in demonstration.turns or mark in chat.ends.texts),
            None,
        )
        if mark:
            return mark
    return None


def example_of(
    demonstration: Demonstration, chat: ChatTokens, syntax: Syntax, spec: RunSpec
) -> Example | None:
    """The tokens of one episode as a rollout has them. None means that it, or a part of it, is too long.

    Raises:
        TemplateFault: the chat template does not render it.
    """
    rule = spec.sft
    limits = spec.training
    is_limited = rule.max_tokens is None
    is_all = rule.loss_on is LossOn.ALL
    positions = sorted(demonstration.turns)
    opening = demonstration.messages[: positions[0]]
    prompt = chat.prompt(opening, demonstration.tools)
    _check_is_rendered(opening, chat.rendered(opening, demonstration.tools))
    if is_limited and len(prompt) > limits.max_prompt_tokens:
        return None
    # No logits are there for the first token.
    example = Example(
        [*prompt], [0] + [int(is_all)] * (len(prompt) - 1), pictures=digests_of(opening)
    )
    keeps_thinking = rule.thinking is Thinking.KEEP
    no_thinking = "" if demonstration.is_own else chat.no_thinking
    for number, at in enumerate(positions):
        calls = demonstration.turns[at]
        content = demonstration.messages[at]["content"]
        text = turn_text(content, calls, syntax, demonstration.tools, thinking=keeps_thinking)
        ids = chat.turn(
            after_prompt(chat.text(example.ids[-16:]), text, no_thinking),
            is_call=bool(calls),
        )
        if is_limited and len(ids) > limits.next_turn(len(example.ids) - len(prompt)):
            return None
        example.add(ids, is_trained=at not in demonstration.without_loss)
        if number + 1 < len(positions):
            reply = demonstration.messages[at + 1 : positions[number + 1]]
            example.add(chat.reply(reply, last_id=ids[-1]), is_trained=is_all)
            example.pictures.extend(digests_of(reply))
            _check_is_rendered(chat.env_messages(reply), chat.rendered_reply(reply))
    if chat.pictures is not None and is_all:
        placeholder = chat.pictures.placeholder_id
        mask = [
            0 if token == placeholder else is_trained
            for token, is_trained in zip(example.ids, example.mask, strict=True)
        ]
        example = replace(example, mask=mask)
    most = rule.max_tokens
    if most is None or len(example.ids) <= most:
        return example
    if rule.too_long is LongDialogues.LEAVE_OUT:
        return None
    pictures: list[str] = []
    if chat.pictures is not None:
        most, pictures = chat.pictures.within(example.ids, example.pictures, most)
    return Example(example.ids[:most], example.mask[:most], is_cut=True, pictures=pictures)


def _check_is_rendered(messages: Sequence[Message], text: str) -> None:
    """Raises TemplateFault if the text lacks words of a message; templates may change all other characters.

    Earlier turns of the assistant are not compared: some templates leave out their thinking.
    """
    for message in messages:
        role = message["role"]
        end = 0
        for word in re.findall(r"\w+", message["content"]) if role != "assistant" else ():
            start = text.find(word, end)
            if start < 0:
                raise TemplateFault(f"it leaves out a text of the role {role}")
            end = start + len(word)
        if role != "tool" and message.get("name", "") not in text:
            raise TemplateFault(f"it leaves out the name of the role {role}")


def after_prompt(prompt: str, text: str, no_thinking: str = "") -> str:
    """A turn after the end of its prompt, which opens its thinking with the templates of thinking models.

    Args:
        prompt: the end of the prompt.
        text: the turn.
        no_thinking: text that the template writes before a turn without thinking.

    Raises:
        TemplateFault: the prompt has closed the thinking, and the turn opens it again.
    """
    if prompt.rstrip().endswith(THINK_CLOSE) and text.lstrip().startswith(THINK_OPEN):
        raise TemplateFault(
            "its prompt has no thinking, and the episode has some; set sft.thinking=cut"
        )
    is_open = prompt.rstrip().endswith(THINK_OPEN)
    if is_open and text.lstrip().startswith(THINK_OPEN):
        return text.lstrip().removeprefix(THINK_OPEN).removeprefix("\n")
    if THINK_CLOSE in text or THINK_OPEN in text:
        return text
    return f"{no_thinking or (_CLOSED if is_open else '')}{text}"


def turn_text(content: str, calls: Calls, syntax: Syntax, tools: str, *, thinking: bool) -> str:
    """A turn as the policy writes it: the recorded text if it has these calls in the policy's dialect.

    Otherwise the calls are written in that dialect, after the text if it has no calls in any dialect (an API's).
    """
    if not thinking:
        content = without_thinking(content, None, *syntax.thinking)
    expected = tuple(ToolCall(name, arguments) for name, arguments in calls)
    specs = specs_of(tools)
    if not calls:
        return syntax.prose(content, False)
    if syntax.read(content, lambda: specs) == expected:
        return content
    is_prose = all(not other.read(content, lambda: specs) for other in SYNTAX.values())
    written = syntax.joined([syntax.write(name, arguments) for name, arguments in calls])
    return f"{syntax.prose(content, True) if is_prose and content else ''}{written}"


def specs_of(tools: str) -> list[ToolSpec]:
    """The tools of a JSON list of schemas."""
    functions = [load.get("function", load) for load in json.loads(tools)]
    return [
        ToolSpec(function["name"], function.get("description", ""), function.get("parameters", {}))
        for function in functions
    ]


def summary(
    trained: Sequence[Example], held_out: Sequence[Example], counts: Mapping[str, int]
) -> str:
    """One line about the episodes, and those that are left out with the reason."""
    tokens = sum(sum(example.mask) for example in trained)
    num_cut = sum(example.is_cut for example in (*trained, *held_out))
    left_out = "; ".join(f"{number} {why}" for why, number in counts.items())
    return (
        f"{counted(len(trained), 'episode')} to train on ({tokens:,} tokens with a loss),"
        f" {len(held_out)} held out{f', {num_cut} cut' if num_cut else ''}; left out: {left_out or 'none'}"
    )
