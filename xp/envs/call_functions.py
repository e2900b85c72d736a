"""Calls a user's reward functions in processes of `xp.envs.call_processes`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.envs.call_processes import CallProcesses
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.forks import Loop, serve_forks
from xp.lib.load import load_object

PROGRAM: Final = "xp.envs.call_functions"


class FunctionHandler:
    """The child's side; see xp.envs.rpc_server."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._loop = Loop()

    def load(self) -> list[Any]:
        names = [function.fn for function in self._config.reward_fn or ()]
        names += filter(None, [self._config.group_reward_fn])
        return [load_object(name) for name in names]

    def call(self, _: int, call: tuple[str, Sequence[Any], Mapping[str, Any]]) -> Any:
        name, arguments, options = call
        return self._loop.result(load_object(name)(*arguments, **options))


class CalledFunctions:
    """The reward functions of one environment, called as in the user's own script.

    Args:
        config: the environment.
    """

    def __init__(self, config: EnvConfig) -> None:
        self._limits = config.limits
        self._processes = CallProcesses(
            ChildProcess(PROGRAM, config, {}, is_trusted=True),
            config.limits.create_timeout_s,
            "the reward function",
        )

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """The function's result; raises EnvFault as `xp.envs.call_processes.CallProcess.ask` does."""
        limit_s = self._limits.call_timeout_s
        return self._processes.call("call", (name, arguments, options), limit_s, "it")

    def close(self) -> None:
        self._processes.close()


if __name__ == "__main__":
    serve_forks(FunctionHandler)
