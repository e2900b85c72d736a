"""One attempt at a task: a shell tool, and at the end the verifier's reward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from xp.contrib.harbor.reward_file import reward_of
from xp.contrib.harbor.sandbox import CommandSandbox, Ran
from xp.contrib.harbor.task_folder import TEST, HarborTask
from xp.envs.base import DeadlineExceeded, Message, SessionLost, ToolResult, ToolSpec

BASH: Final = "bash"
COMMAND: Final = "command"
TOOL: Final = ToolSpec(
    BASH,
    "Run one command in the task's container. Each command has a new shell that begins in the working directory;"
    " files stay. When the task is done, answer with a message instead.",
    {
        "type": "object",
        "properties": {
            COMMAND: {"type": "string", "description": "The command, as bash reads it."}
        },
        "required": [COMMAND],
        "additionalProperties": False,
    },
)
VERIFIER_OUTPUT: Final = 4000


class HarborSession:
    """See xp.envs.base.Session and StateScorer. The sandbox starts with the first command.

    Args:
        task: the task.
        start: function that starts its sandbox.
        command_timeout_s: time limit of one command, in seconds.
        output_bytes: largest size of a command's output that is shown.
        reward: name of the reward, if the verifier writes several.
        environ: variables of every command; the verifier has further ones.
    """

    def __init__(
        self,
        task: HarborTask,
        start: Callable[[], CommandSandbox],
        *,
        command_timeout_s: float,
        output_bytes: int,
        reward: str,
        environ: tuple[Mapping[str, str], Mapping[str, str]],
    ) -> None:
        self._task = task
        self._start = start
        self._timeout_s = command_timeout_s
        self._output_bytes = output_bytes
        self._reward = reward
        self._environ, self._verifier_environ = environ
        self._left_s = task.agent_timeout_s
        self._lock = threading.Lock()
        self._sandbox: CommandSandbox | None = None
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=self._task.instruction)]

    def tools(self) -> tuple[ToolSpec, ...]:
        return (TOOL,)

    @property
    def takes_answer(self) -> bool:
        return True

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        command = arguments.get(COMMAND)
        self._check_open()
        if name != BASH:
            return ToolResult(
                f"Error: there is no tool {name!r}; there is {BASH}.", is_call_error=True
            )
        if not isinstance(command, str) or set(arguments) != {COMMAND} or "\0" in command:
            return ToolResult(
                f"Error: {BASH} takes one argument, {COMMAND}, which is a text.", is_call_error=True
            )
        if self._left_s is not None and self._left_s <= 0:
            return self._verify()
        if self._left_s is None:
            limit_s = self._timeout_s
        else:
            limit_s = min(self._timeout_s, self._left_s)
        began = time.monotonic()
        sendable = command.encode("utf-8", "replace").decode()
        ran = self._machine().run(
            sendable, self._environ, limit_s, self._output_bytes, self._task.agent_user
        )
        if self._left_s is not None:
            self._left_s -= time.monotonic() - began
        return ToolResult(shown(ran))

    def answer(self, text: str) -> ToolResult:
        """Ends the episode, when the model writes a message without a call; returns the reward."""
        self._check_open()
        return self._verify()

    def leave(self) -> ToolResult:
        """See xp.envs.base.StateScorer."""
        self._check_open()
        return self._verify()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            sandbox = self._sandbox
            self._sandbox = None
        if sandbox is not None:
            sandbox.close()

    def _verify(self) -> ToolResult:
        environ = {**self._environ, **self._verifier_environ}
        return ToolResult(
            "", verify(self._machine(), self._task, self._reward, environ), finished=True
        )

    def _machine(self) -> CommandSandbox:
        with self._lock:
            if self._sandbox is None:
                if self._is_closed:
                    raise SessionLost("the session is closed")
                self._sandbox = self._start()
            return self._sandbox

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")


def verify(
    machine: CommandSandbox, task: HarborTask, reward: str, environ: Mapping[str, str]
) -> float:
    """Runs a task's verifier and returns its reward; raises EnvFault if it fails."""
    tests = machine.put_tests(task.tests)
    script = f"chmod +x {tests}/{TEST}; {tests}/{TEST}"
    ran = machine.run(script, environ, task.verifier_timeout_s, VERIFIER_OUTPUT, task.verifier_user)
    if ran.killed:
        raise DeadlineExceeded(f"the verifier of {task.name} was killed: {ran.killed}")
    return reward_of(machine, reward, ran.output)


def shown(ran: Ran) -> str:
    """Text of a command for the model."""
    if ran.killed:
        return f"{ran.output}\n[killed: {ran.killed}]".lstrip("\n")
    if ran.code == 0:
        return ran.output
    return f"{ran.output}\n[exit code {ran.code}]".lstrip("\n")
