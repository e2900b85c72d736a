"""One episode of a program: its requests are the policy's prompts, and the state that it leaves has a reward."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.contrib.conversation import ConversationSession, ModelRequest, tool_of
from xp.contrib.harbor.cloud_sandbox import AgentRun, CloudSandbox
from xp.contrib.harbor.reward_file import JSON_FILE, TEXT_FILE, reward_of
from xp.contrib.harbor.sandbox import VERIFIER_LOGS, CommandSandbox, Ran
from xp.contrib.harbor.session import verify
from xp.contrib.harbor.task_folder import HarborTask
from xp.contrib.harness.agents import Agent
from xp.contrib.harness.request import ProgramRequest, RequestPictures, auxiliary_of, difference
from xp.contrib.harness.server import MODEL, ProgramChannel, ProgramServer
from xp.contrib.harness.tool_server import ToolServer
from xp.envs.base import (
    NEW_PROMPT,
    PROMPT_LENGTH,
    DeadlineExceeded,
    EnvFault,
    Message,
    ModelMessage,
    ProtocolError,
    SessionLost,
    TakenResult,
    ToolCrashed,
    ToolResult,
)
from xp.envs.config import EnvConfig
from xp.envs.loop import run
from xp.episode.prompt import opening_messages, tool_schemas
from xp.episode.rewards import reduce_rewards

SLACK_S: Final = 5.0
STOP_S: Final = 20.0
"""Seconds that a program has to end after the answer that the limit is reached."""
KILL_S: Final = 10.0
SETUP_S: Final = 60.0
"""Seconds to copy a row's files before an agent of Harbor's begins."""
MOST_STOPS: Final = 5
"""Largest number of such answers."""
OUTPUT_BYTES: Final = 65_536
TAIL: Final = 400
CODE_FILE: Final = "xp-code"
"""File beside the reward with the exit code of the grading command, as a cloud may lose it and say 1."""
PROGRAM: Final = '"${XP_ROOT}"/program'
"""Directory of the program's own files in a sandbox."""
GRADER: Final = '"${XP_ROOT}"/grader'
GROUP: Final = 'read -r _ _ _ _ group _ </proc/$$/stat; echo $group >"${XP_ROOT}/tmp/xp-group"; '
"""Shell script that notes the process group of the program, to end it before the sandbox."""
KILL: Final = (
    'read -r group <"${XP_ROOT}/tmp/xp-group"; [ "$group" -gt 1 ] && kill -KILL -- "-$group"'
)
LIMITS: Final = ("rewritten", "refused", "timed_out", "limit")
"""Reasons why an episode is truncated: a request that does not extend the conversation, or that cannot be answered; the
program's time; turns or tokens."""


class HarnessSession(ConversationSession):
    """See xp.envs.base.Session, StateScorer and MessageTaker.

    Args:
        agent: the program, with `{...}` for places and addresses in its command.
        task: prompt and limits of the task, and its tests if it has them.
        row: content of the task for the grading command.
        start: starts the sandbox, with the program's files in it.
        tools: the task's own session; None: it has none.
        environ: variables of the task, for the program, and further ones for its tests.
        server: the endpoint.
        config: rules of the environment.
        grader: file or folder of the grading script; None: the command finds it.
        agent_options: arguments of an agent of Harbor's.
    """

    package = "the program"

    def __init__(
        self,
        agent: Agent,
        task: HarborTask,
        row: Mapping[str, Any],
        start: Callable[[], CommandSandbox],
        tools: ToolServer | None,
        environ: tuple[Mapping[str, str], Mapping[str, str]],
        server: ProgramServer,
        config: EnvConfig,
        grader: Path | None = None,
        agent_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._grader = grader
        self._agent_options = agent_options or {}
        self._options = config.options
        super().__init__(min(self._options["timeout_s"], task.agent_timeout_s or math.inf))
        self._agent = agent
        self._task = task
        self._row = row
        self._start_sandbox = start
        self._tool_server = tools
        self._server = server
        self._config = config
        self._max_rows: int = self._options["max_rows"]
        self._environ, self._verifier_environ = environ
        self._lock = threading.Lock()
        self._sandbox: CommandSandbox | None = None
        self._is_closed = False
        self._last_text = ""
        self._turns: list[tuple[ModelRequest, Message]] = []
        """Each request, and the policy's message to it."""
        self._follows = [NEW_PROMPT]
        """Number of the turn that each request follows."""
        self._num_splices = 0
        self._prompt_length = PROMPT_LENGTH.get()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_open()
        return super().call(name, arguments)

    def take(self, message: ModelMessage) -> ToolResult:
        """See MessageTaker; the program's time runs from the policy's message to its next request."""
        self._check_open()
        began = time.monotonic()
        if self._request is not None and self._request.takes_one_call:
            message = _with_one_call(message)
        self._last_text = message.message["content"]
        try:
            before, episode = self._exchange(message)
        except DeadlineExceeded:
            return self._truncated("timed_out")
        self._limit_s -= time.monotonic() - began
        self._turns.append((before, message.message))
        if self._request is None:
            return self._end(episode)
        return self._next_messages(self._request)

    def _next_messages(self, now: ModelRequest) -> ToolResult:
        """The messages of a request after the longest dialogue that it repeats, or as a new prompt."""
        last = len(self._turns) - 1
        reason = difference(*self._turns[last], now)
        repeated = [
            number for number, turn in enumerate(self._turns) if difference(*turn, now) is None
        ]
        follows = max(
            repeated, key=lambda number: (self._length(number), number), default=NEW_PROMPT
        )
        self._follows.append(follows)
        if reason and self._max_rows == 1:
            _warn_once(
                f"environment {self._config.name}: the program does not continue its conversation ({reason}), so the"
                " episode ends here and is scored: a row of tokens follows one growing conversation; set"
                " env.options.max_rows to train on several rows"
            )
            return self._truncated("rewritten")
        turns = set(range(len(self._follows)))
        if not self._options["train_auxiliary"]:
            turns -= auxiliary_of([*(request for request, _ in self._turns), now])
        if self._num_rows(turns) > self._max_rows:
            return self._truncated("limit")
        self._num_splices += follows not in (last, NEW_PROMPT)
        self._tools = tuple(map(tool_of, now.tools))  # A sub-agent may have other ones.
        new = tuple(
            now.messages if follows == NEW_PROMPT else now.messages[self._length(follows) :]
        )
        return TakenResult("", messages=new, follows=None if follows == last else follows)

    def _num_rows(self, turns: Collection[int]) -> int:
        """Number of these turns that no other one of them follows: each ends a row of tokens."""
        return len(set(turns) - {self._follows[turn] for turn in turns})

    def _length(self, turn: int) -> int:
        """Number of messages up to a turn of the policy."""
        return len(self._turns[turn][0].messages) + 1

    def _num_tokens(self, request: ProgramRequest) -> int:
        """Number of tokens of a request as a new prompt of the policy."""
        assert self._prompt_length is not None
        tools = tuple(map(tool_of, request.tools))
        messages = opening_messages(self._config.system_prompt, request.messages, tools)
        return self._prompt_length(messages, json.dumps(tool_schemas(tools), ensure_ascii=False))

    def leave(self) -> ToolResult:
        """See StateScorer."""
        self._check_open()
        return self._truncated("limit")

    def _start(self, questions: asyncio.Queue[ModelRequest]) -> asyncio.Future[Any]:
        if self._prompt_length is None:
            count = None
        else:
            count = self._num_tokens
        if self.read_picture is None:
            pictures = None
        else:
            pictures = RequestPictures(self.read_picture)
        only_appends = self._max_rows == 1
        self._channel = ProgramChannel(
            questions, self._tool_server, count, only_appends=only_appends, pictures=pictures
        )
        self._key = self._server.add(self._channel)
        ended: concurrent.futures.Future[Ran] = concurrent.futures.Future()
        ended.set_running_or_notify_cancel()

        def play() -> None:
            try:
                ended.set_result(self._run_program())
            except BaseException as error:  # raised where the session waits
                ended.set_exception(error)

        threading.Thread(target=play, name="program", daemon=True).start()
        episode = asyncio.wrap_future(ended)
        episode.add_done_callback(asyncio.Future.exception)  # there may be nobody who reads it
        return episode

    def _run_program(self) -> Ran:
        """Starts the sandbox and runs the program to its end."""
        machine = self._machine()
        copy = ""
        files = self._row.get("files")
        if files:
            _put(machine, "files", files)
            copy = 'cp -r "${XP_ROOT}/files/." .; '
        _put(machine, "prompt", {"prompt.md": self._task.instruction})
        places = {"prompt_file": '"${XP_ROOT}/prompt/prompt.md"', "program": PROGRAM}
        addresses = {"url": self._server.url, "model": MODEL}
        variables = {
            "OPENAI_BASE_URL": "{url}/v1",
            "OPENAI_API_KEY": "{key}",
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "{key}",
            "XP_MODEL": "{model}",
            "XP_TOOLS_URL": "{url}/mcp" if self._tool_server is not None else "",
            **self._agent.environ,
        }
        environ = {
            name: _filled(value, {**addresses, "key": self._key})
            for name, value in variables.items()
        }
        if isinstance(machine, CloudSandbox) and self._agent.harbor_name is not None:
            if copy:
                machine.run(copy, {}, SETUP_S, TAIL, self._task.agent_user)
            return machine.play(self._harbor_run(self._agent.harbor_name, environ))
        # Other users of the machine see a command, so the key is in a variable alone.
        command = copy + GROUP + _filled(self._agent.command, {**addresses, **places})
        limit_s = self._config.limits.episode_timeout_s
        return machine.run(
            command, {**self._environ, **environ}, limit_s, OUTPUT_BYTES, self._task.agent_user
        )

    def _harbor_run(self, name: str, environ: Mapping[str, str]) -> AgentRun:
        return AgentRun(
            name=name,
            options=self._agent_options,
            instruction=self._task.instruction,
            model=MODEL,
            environ={**self._environ, **environ},
            user=self._task.agent_user,
            limit_s=self._config.limits.episode_timeout_s,
        )

    def _kill(self) -> None:
        """Ends the program."""
        machine = self._machine()
        if isinstance(machine, CloudSandbox) and self._agent.harbor_name is not None:
            machine.stop()
        else:
            machine.run(KILL, {}, KILL_S, TAIL, self._task.agent_user)

    def _end(self, episode: Ran) -> ToolResult:
        """The reward of what the program left; raises EnvFault if it never played, or cannot be scored."""
        if episode.killed:
            return self._scored(episode, "timed_out")
        what = f"the program ended with code {episode.code}"
        if self._channel.refused is not None:
            if len(
                self._channel.answers
            ):  # The policy may have sent it by a tool, and must not void its own episode.
                return self._scored(episode, "refused")
            raise ProtocolError(
                f"{what} after a request that cannot be answered: {self._channel.refused}"
            )
        if not len(self._channel.answers):
            tail = " ".join(episode.output.split())[-TAIL:]
            raise ToolCrashed(
                f"{what} before it asked the model anything; its output ends: {tail!r}"
            )
        return self._scored(episode)

    def _truncated(self, why: str) -> ToolResult:
        """Asks the program to end, kills it if it does not, and scores what it left."""
        assert self._episode is not None
        episode = self._episode
        limit_s = 0.0 if why == "timed_out" else STOP_S
        run(self._stopped(episode, limit_s), limit_s + SLACK_S)
        if not episode.done():
            with suppress(EnvFault):
                self._kill()
                run(asyncio.wait({episode}, timeout=KILL_S), KILL_S + SLACK_S)
        return self._scored(episode.result() if episode.done() else Ran(None, ""), why)

    def _scored(self, ran: Ran, why: str = "") -> ToolResult:
        """Scores what the program left; `why` is the limit that ended it, if there was one."""
        run(self._sealed(), SLACK_S)
        channel = self._channel
        undelivered = self._channel.undelivered
        auxiliary = auxiliary_of([request for request, _ in self._turns])
        left_out = undelivered
        if not self._options["train_auxiliary"]:
            left_out = tuple(sorted({*undelivered, *auxiliary}))
        rows = self._num_rows([turn for turn in range(len(self._turns)) if turn not in left_out])
        metrics = {
            "program_requests": float(len(channel.answers)),
            "program_retries": float(channel.num_retries),
            "program_waited_s": channel.waited_s,
            "program_rows": float(rows),
            "program_splices": float(self._num_splices),
            "program_undelivered": float(len(undelivered)),
            "program_auxiliary": float(len(auxiliary)),
            "program_failed": float(ran.code != 0),
            **{f"program_{limit}": float(limit == why) for limit in LIMITS},
            **{f"client_{name}": value for name, value in channel.settings.items()},
        }
        # What a program does after the end of the task's own session changes nothing.
        has_ended = self._tool_server is not None and self._tool_server.is_over
        return TakenResult(
            "",
            self._grade(ran),
            True,
            metrics=metrics,
            is_truncated=bool(why) and not has_ended,
            undelivered=left_out,
        )

    async def _sealed(self) -> None:
        self._channel.seal()

    async def _stopped(self, episode: asyncio.Future[Any], limit_s: float) -> None:
        """Waits for the program's end, after the answer that the limit is reached."""
        self._channel.stop()
        ends = time.monotonic() + limit_s
        while (
            not episode.done() and time.monotonic() < ends and self._channel.num_stops < MOST_STOPS
        ):
            await asyncio.wait({episode}, timeout=0.05)

    def _grade(self, ran: Ran) -> float | None:
        """The reward: of the task's session, the grading command or the task's tests."""
        if self._tool_server is not None:
            return self._grade_session(self._tool_server)
        environ = {**self._environ, **self._verifier_environ}
        if self._options["grade"] is None:
            return verify(self._machine(), self._task, self._options["reward"], environ)
        machine = self._machine()
        row = json.dumps(dict(self._row), default=str)
        _put(machine, "grading", {"row": row, "output": ran.output, "answer": self._last_text})
        places = {
            f"{name}_file": f'"${{XP_ROOT}}/grading/{name}"' for name in ("row", "output", "answer")
        }
        if self._grader is not None:
            put_place(machine, self._grader, "grader")
        places |= {"program": PROGRAM, "grader": GRADER}
        logs = f'"${{XP_ROOT}}{VERIFIER_LOGS}"'
        grade = _filled(self._options["grade"], places)
        command = f"rm -rf {logs}; mkdir -p {logs}; (\n{grade}\n); echo $? >{logs}/{CODE_FILE}"
        graded = machine.run(command, environ, self._config.limits.call_timeout_s, OUTPUT_BYTES)
        code = machine.read(CODE_FILE)
        if code in ("0\n", "1\n") and all(
            machine.read(name) is None for name in (JSON_FILE, TEXT_FILE)
        ):
            return float(code == "0\n")
        if code != "0\n":
            reason = graded.killed or (
                f"code {graded.code}" if code is None else f"code {code.strip()}"
            )
            raise ToolCrashed(
                f"the grading command failed ({reason}); its output ends: {graded.output[-TAIL:]!r}"
            )
        return reward_of(machine, self._options["reward"], graded.output)

    def _grade_session(self, tools: ToolServer) -> float:
        """The reward of the task's own session, by the environment's rule; its steps happened inside of the program."""
        if not tools.is_over and tools.fault is None and tools.session.takes_answer:
            tools.results.append(tools.session.answer(self._last_text))
        if tools.fault is not None:
            raise tools.fault
        rewards = [result.reward for result in tools.results if result.reward is not None]
        return reduce_rewards(rewards, tools.is_over, self._config.reward)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")

    def _machine(self) -> CommandSandbox:
        with self._lock:
            self._check_open()
            if self._sandbox is None:
                self._sandbox = self._start_sandbox()
            return self._sandbox

    async def _stop(self) -> None:
        self._server.remove(getattr(self, "_key", ""))

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            sandbox = self._sandbox
            self._sandbox = None
        super().close()
        if sandbox is not None:
            sandbox.close()
        if self._tool_server is not None:
            self._tool_server.session.close()


def _put(machine: CommandSandbox, name: str, files: Mapping[str, str]) -> None:
    """Makes a new directory of the sandbox with these files: path below it -> text."""
    with tempfile.TemporaryDirectory(prefix="xp-files-") as folder:
        for path, text in files.items():
            place = Path(folder, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", errors="replace")
        machine.put(Path(folder), name)


def put_place(machine: CommandSandbox, place: Path, name: str) -> None:
    """Makes a new directory of the sandbox with a file of this machine, or the content of a folder."""
    with tempfile.TemporaryDirectory(prefix="xp-place-") as folder:
        machine.put(place if place.is_dir() else Path(shutil.copy(place, folder)).parent, name)


def _with_one_call(message: ModelMessage) -> ModelMessage:
    """A message with the first of its calls."""
    if "tool_calls" not in message.message:
        return message
    calls = message.message["tool_calls"][:1]
    return replace(message, message={**message.message, "tool_calls": calls})


@cache
def _warn_once(text: str) -> None:
    print(f"xp: {text}", file=sys.stderr, flush=True)


def _filled(text: str, places: Mapping[str, str]) -> str:
    """A text with places for their names in braces; other braces are left as they are."""
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", value)
    return text
