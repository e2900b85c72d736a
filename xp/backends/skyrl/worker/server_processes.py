"""Processes of SkyRL's engine servers: each a Ray actor with the engine's processes as children, on any node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Started:
    """Processes of one server, listed when it was up."""

    node: str
    """Ray's id of its node."""
    processes: tuple[tuple[int, float], ...]
    """Id and creation time of each; the time tells it from a later process with the same id."""

    def are_all_there(self) -> bool:
        """Returns whether all of them are running."""
        return _on_node(self.node, _all_there, self.processes)

    def end(self) -> None:
        """Kill the remaining ones: an engine without its HTTP process still holds its accelerator's memory."""
        _on_node(self.node, _end, self.processes)


def started_by(actors: Sequence[Any]) -> list[Started]:
    """The processes of these servers, which must be up.

    Args:
        actors: SkyRL's, as Ray's handles.
    """
    import ray

    found: list[Started] = ray.get([actor.__ray_call__.remote(_own) for actor in actors])
    return found


def _own(_actor: Any) -> Started:
    """Called in the actor's process."""
    import psutil
    import ray

    here = psutil.Process()
    processes = [here, *here.children(recursive=True)]
    return Started(ray.get_runtime_context().get_node_id(), tuple((one.pid, one.create_time()) for one in processes))


def _on_node(node: str, function: Callable[..., T], *args: Any) -> T:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if node == ray.get_runtime_context().get_node_id():
        return function(*args)
    there = ray.remote(num_cpus=0)(function).options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False))
    found: T = ray.get(there.remote(*args))
    return found


def _all_there(processes: Sequence[tuple[int, float]]) -> bool:
    return all(_process(pid, created) is not None for pid, created in processes)


def _end(processes: Sequence[tuple[int, float]]) -> None:
    import psutil

    for pid, created in processes:
        if (process := _process(pid, created)) is not None:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _process(pid: int, created: float) -> Any:
    """The process if it runs, else None; a zombie counts as ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        runs = process.create_time() == created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if runs else None
